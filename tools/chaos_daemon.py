"""The daemon of tools/chaos, with a settings file of its own, a reader of its log, and looks at what it holds."""
import collections
import http.client
import json
import mmap
import os
import re
import struct
import subprocess
import sys
import threading
import time

# Kinds of fault inside a worker: the planned fault (config/base/fault_points.hpp), and the latest hit for it.
PLANNED = {"record": ("corrupt@ipc.commit", 60), "device lost": ("fail@gpu.submit", 200),
           "GPU wait": ("fail@gpu.wait", 200), "no memory": ("fail@heap.allocate", 20000),
           "waiting page": ("corrupt@kv.waiting", 50), "used page": ("corrupt@kv.used", 200)}


class Plan:
    """The next fault inside one of the workers: fault_points.hpp's LivePlan, which all workers read."""

    def __init__(self, path):
        self.path, self.kind = path, None
        with open(path, "wb") as file:
            file.write(bytes(256))
        with open(path, "r+b") as file:
            self.shared = mmap.mmap(file.fileno(), 256)

    def arm(self, kind, n):
        """Returns the kind of the plan before, if that fault has happened meanwhile."""
        generation, acted = struct.unpack_from("<QQ", self.shared)
        done = self.kind if acted == generation else None
        self.kind = kind
        text = f"{PLANNED[kind][0]}:{n}" if kind else ""
        struct.pack_into("<Q", self.shared, 0, generation + 1)
        struct.pack_into("240s", self.shared, 16, text.encode())
        struct.pack_into("<Q", self.shared, 0, generation + 2)
        return done


class LogReader:
    """Copies the daemon's log from a pipe to a file, as a service manager does, and stops for a while on request."""

    def __init__(self, path):
        self.path, self.stopped = path, threading.Event()
        self.reading, self.writing = os.pipe()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        with open(self.path, "wb") as file:
            while piece := os.read(self.reading, 65536):
                file.write(piece)
                file.flush()
                while self.stopped.is_set():
                    time.sleep(0.01)

    def text(self):
        with open(self.path, errors="replace") as log:
            return log.read()


class Daemon:
    def __init__(self, options, folder):
        self.folder, self.model = folder, options.model_file
        self.log = LogReader(options.log or os.path.join(folder, "daemon.log"))
        environment = dict(os.environ)
        self.plan = None
        faulty = options.worker or os.path.join(options.bin, "..", "tests", "worker_with_faults")
        if os.access(faulty, os.X_OK) and (options.worker or "BULKHEAD_WORKER" not in environment):
            self.plan = Plan(os.path.join(folder, "plan"))
            environment.update(BULKHEAD_WORKER=os.path.realpath(faulty), BULKHEAD_FAULTS_LIVE=self.plan.path)
        self.settings = os.path.join(folder, "settings.yaml")
        # Settings that a reload may change must be in the file. The file is JSON, which is YAML, too.
        self.good_settings = json.dumps({
            "models": [{"path": self.model, "workers": options.workers}],
            "isolation": {"heartbeat_timeout_ms": options.heartbeat_ms, "resume_window_s": 5,
                          "journal_path": os.path.join(options.disk or folder, "journal")}})
        with open(self.settings, "w", encoding="utf-8") as file:
            file.write(self.good_settings)
        words = [os.path.join(options.bin, "bulkheadd"), "--config", self.settings]
        for setting in ["server.port=0", f"ipc.transport={options.transport}", *options.set]:
            words += ["--set", setting]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self.log.writing, env=environment,
                                        text=True)
        os.close(self.log.writing)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.process.wait()
            self.log.thread.join(5)
            sys.exit(f"chaos: the daemon did not start:\n{self.log.text()}")
        self.port = int(line.rsplit(":", 1)[1])

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def workers(self):
        return json.loads(self.get("/v1/workers"))

    def wait_until_ready(self, patience_s=90):
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if all(w["state"] in ("ready", "standby") for w in self.workers()):
                return True
            time.sleep(0.1)
        return False

    def figure(self, name):
        """Returns a metric that has one line; None if the daemon has no such metric."""
        found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found.group(1)) if found else None

    def deaths(self):
        """Returns the deaths of all workers, by cause."""
        found = collections.Counter()
        for line in self.get("/metrics").splitlines():
            if line.startswith("bulkhead_worker_deaths_total{"):
                labels, count = line.rsplit(" ", 1)
                found[labels.split('cause="')[1].split('"')[0]] += int(float(count))
        return found

    def hangs(self):
        """Returns what the daemon's log says that processes were doing which it killed for a hang."""
        found = re.findall(r"hang: .*: process \d+ (is .*)", self.log.text())
        return collections.Counter("stopped" if what.startswith("is stopped") else what for what in found)

    def holdings(self):
        """Returns what the process holds, as the kernel reports it."""
        folder = f"/proc/{self.process.pid}"
        with open(f"{folder}/status") as status:
            rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        with open(f"{folder}/maps") as maps:
            lines = maps.readlines()
        named = sum(1 for line in lines if "/" in line or "[" in line)
        with open(f"{folder}/task/{self.process.pid}/children") as children:
            processes = len(children.read().split())
        return {"descriptors": len(os.listdir(f"{folder}/fd")), "mappings": named,
                "anonymous mappings": len(lines) - named, "processes": processes,
                "threads": len(os.listdir(f"{folder}/task")), "RSS KiB": rss}
