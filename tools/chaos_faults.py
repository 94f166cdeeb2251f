"""The faults of tools/chaos: what happens to workers, and what happens around the daemon."""
import ctypes
import mmap
import os
import random
import shutil
import signal
import socket
import struct
import threading
import time

from chaos_daemon import PLANNED

RING_HEAD_OFFSET = 1024  # ipc/region.hpp: the worker's published index
GARBLE_S = 0.2
DISK_MIB = 128


# ---- to a worker ----

def garble_ring(pid):
    """Overwrites the index that the worker has published with nonsense, for a moment and as often as possible: the
    daemon reads the index when it is woken, and the worker writes the right one just before that."""
    with open(f"/proc/{pid}/maps") as maps:
        starts = [int(line.split("-")[0], 16) for line in maps if "bulkhead-ring" in line]
    if not starts:
        raise OSError("no ring")  # the ring is not mapped yet
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        nonsense = os.urandom(8)
        end = time.monotonic() + GARBLE_S
        while time.monotonic() < end:
            for _ in range(100):
                os.pwrite(memory, nonsense, starts[0] + RING_HEAD_OFFSET)
    except OSError:
        pass  # the daemon noticed it, and the worker is gone
    finally:
        os.close(memory)


def memory_files(pid, name):
    """Returns a process's open memory files whose names contain `name`, as inode to path."""
    found = {}
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        path = f"{folder}/{number}"
        try:
            if name in os.readlink(path):
                found[os.stat(path).st_ino] = path
        except OSError:
            pass  # the process closed it meanwhile
    return found


def spoil_pages(daemon_pid, pid):
    """Stops the worker, changes bits in all of its KV pages, and kills it, so that its successor finds other bits than
    were computed. The pages are the blocks that the vault's directory (worker/vault/directory.hpp) names last."""
    with open(f"/proc/{pid}/maps") as maps:
        mapped = {int(line.split()[4]) for line in maps}
    directories = [path for inode, path in memory_files(daemon_pid, "bulkhead vault").items() if inode in mapped]
    blocks = [path for inode, path in memory_files(daemon_pid, "llvmpipe").items() if inode in mapped]
    if not directories or not blocks:
        raise OSError("its memory is on a GPU, or not kept")
    with open(directories[0], "rb") as directory:
        weight_blocks, count, identity = struct.unpack_from("<III", directory.read(128), 52)
        directory.seek(128 + identity)
        sizes = struct.unpack(f"<{count}Q", directory.read(8 * count))
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(0.05)  # the threads stop one after another
        for size in sizes[weight_blocks:]:
            for path in blocks:
                # A driver's header comes before the memory itself.
                header = os.stat(path).st_size - size
                if not 0 <= header < 65536:
                    continue
                with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                    for at in range(header, len(memory), 512):
                        memory[at] ^= 1
    finally:
        os.kill(pid, signal.SIGKILL)


# ---- around the daemon ----

def own_small_disk(path):
    """Mounts a small file system at `path` that only this process and its children see. Returns None if the kernel does
    not allow that."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, new_user, private = 0x20000, 0x10000000, 0x4C000  # CLONE_NEWNS, CLONE_NEWUSER, MS_REC | MS_PRIVATE
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(new_mounts if user == 0 else new_mounts | new_user) != 0:
        return None
    try:
        if user != 0:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
        os.mkdir(path)
    except OSError:
        return None
    mounted = libc.mount(None, b"/", None, private, None) == 0 and libc.mount(
        b"chaos", path.encode(), b"tmpfs", 0, f"size={DISK_MIB}m".encode()) == 0
    return path if mounted else None


def unmount(path):
    ctypes.CDLL(None).umount2(path.encode(), 2)  # MNT_DETACH


class Surroundings:
    """Faults around the daemon, by an operator, a disk or a client. Each lasts a moment, and several may overlap."""

    def __init__(self, daemon, disk):
        self.daemon, self.disk = daemon, disk
        self.kinds = {"log reader": self.stop_log_reader, "reload": self.break_settings, "bodies": self.send_bodies}
        if disk:
            self.kinds["full disk"] = self.fill_disk
        if os.path.dirname(daemon.model) == daemon.folder:
            self.kinds["model file"] = self.replace_model
        self.busy = {kind: threading.Lock() for kind in self.kinds}
        self.threads = []

    def begin(self, kind, seed):
        """Returns False if a fault of the same kind is still going on."""
        if not self.busy[kind].acquire(blocking=False):
            return False

        def run():
            try:
                self.kinds[kind](random.Random(seed))
            finally:
                self.busy[kind].release()
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        return True

    def end(self):
        for thread in self.threads:
            thread.join()

    def stop_log_reader(self, draw):
        self.daemon.log.stopped.set()
        time.sleep(draw.uniform(0.5, 3))
        self.daemon.log.stopped.clear()

    def fill_disk(self, draw):
        """Leaves no room for the journal. The daemon's other files lie elsewhere."""
        filler = os.path.join(self.disk, "filler")
        try:
            with open(filler, "wb") as file:
                piece = bytes(1 << 20)
                for _ in range(DISK_MIB + 1):
                    file.write(piece)
        except OSError:
            pass  # the disk is full
        time.sleep(draw.uniform(0.5, 2))
        os.unlink(filler)

    def put(self, path, make):
        """Replaces a file in one step by the file that `make` makes."""
        make(path + ".new")
        os.rename(path + ".new", path)

    def put_text(self, path, text):
        def write(new):
            with open(new, "w", encoding="utf-8") as file:
                file.write(text)
        self.put(path, write)

    def break_settings(self, draw):
        """Reloads settings that can't be read or make no sense, and then the settings in force."""
        good, path = self.daemon.good_settings, self.daemon.settings
        way = draw.randrange(7)
        if way == 0:
            os.unlink(path)
        elif way == 1:
            os.unlink(path)
            os.mkfifo(path)
        else:
            self.put_text(path, ["", good[:len(good) // 2], "\t{]" + good, '{"models": []}',
                                 good.replace("heartbeat_timeout_ms", "heart_beat")][way - 2])
        self.daemon.process.send_signal(signal.SIGHUP)
        time.sleep(draw.uniform(0.2, 1))
        if way == 1:
            self.end_reader(path)
        self.put_text(path, good)
        self.daemon.process.send_signal(signal.SIGHUP)

    @staticmethod
    def end_reader(fifo):
        """Lets the daemon's thread that reads the FIFO end; otherwise each such reload would leave a thread."""
        for _ in range(20):
            try:
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
                return
            except OSError:  # the thread has not opened it yet
                time.sleep(0.1)

    def replace_model(self, draw):
        """Replaces the model's file by one with the same content, as an update does; sometimes writes rubbish first."""
        model = self.daemon.model
        shutil.copyfile(model, model + ".kept")
        if draw.random() < 0.5:
            self.put(model, lambda new: shutil.copyfile("/proc/self/exe", new))
            time.sleep(draw.uniform(0, 0.5))
        os.rename(model + ".kept", model)

    def send_bodies(self, draw):
        """Sends bodies that never end, end too soon, nest deeply, or lie about their length."""
        head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        bodies = [head + b"Content-Length: 1000000\r\n\r\n{\"prompt\": \"" + b"x" * draw.randrange(200_000),
                  head + b"Content-Length: 100\r\n\r\n{}", head + b"Content-Length: 1\r\n\r\n{\"prompt\": 1}",
                  head + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{",
                  head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 5000,
                  head + b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000]
        clients = []
        try:
            for _ in range(draw.randrange(5, 30)):
                client = socket.create_connection(("127.0.0.1", self.daemon.port), timeout=10)
                clients.append(client)
                client.settimeout(0.5)
                client.sendall(draw.choice(bodies))
            time.sleep(draw.uniform(0, 1.5))
        except OSError:
            pass  # the daemon may refuse such a body
        finally:
            for client in clients:
                client.close()


def inject(daemon, surroundings, draw, kinds):
    """Makes one fault. Returns its kind, or None if there was no victim."""
    kind = draw.choice(kinds)
    if kind in PLANNED:
        return daemon.plan.arm(kind, int(PLANNED[kind][1] ** draw.random()))
    if kind in surroundings.kinds:
        return kind if surroundings.begin(kind, draw.random()) else None
    workers = [w for w in daemon.workers() if w["pid"]]
    # The daemon does not read an idle worker's index.
    victims = [w["pid"] for w in workers if kind != "ring" or w["outstanding_requests"]]
    if not victims:
        return None
    pid = draw.choice(victims)
    try:
        if kind == "ring":
            garble_ring(pid)
        elif kind == "pages":
            spoil_pages(daemon.process.pid, pid)
        else:
            os.kill(pid, getattr(signal, kind))
    except OSError:
        return None  # the worker is gone already
    return kind
