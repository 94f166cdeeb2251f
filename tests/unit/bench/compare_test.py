#!/usr/bin/env python3
"""Tests bench/compare with made-up runs: compare_test.py SOURCE_FOLDER. Exits with 0 if all is right."""
import itertools
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = sys.argv.pop(1)
PARTS = ["memory_pool", "blit_queue", "command_buffer_ring"]
FACTORS = dict(zip(PARTS, (1.2, 1.1, 1.05)))


def report(on, factors=None, **other):
    rate = 100.0
    for part in on:
        rate *= (factors or FACTORS)[part]
    result = {"streams": 1, "tokens_per_s": rate, "requests_per_s": rate / 100, "ttft_p50_ms": 1000 / rate,
              "ttft_p95_ms": 1100 / rate, "ttft_p99_ms": 1200 / rate, "inter_token_p50_ms": 900 / rate,
              "worker_memory_bytes_peak": 1e8, "gpu": {"device_memory_bytes_peak": 1e9, "busy_share": 0.5}}
    return {"benchmark": "serving-load", "device": "made up", "model": "m", "prompt": 8, "tokens": 8, "numerics_id": "n",
            "parts": {part: part in on for part in PARTS}, "results": [result], **other}


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, content):
        with open(self.path(name), "w") as file:
            json.dump(content, file)
        return self.path(name)

    def compare(self, *arguments):
        return subprocess.run([sys.executable, os.path.join(SOURCE, "bench", "compare"), *arguments],
                              capture_output=True, text=True)

    def everything(self, factors=None):
        files = {}
        for count in range(4):
            for on in itertools.combinations(PARTS, count):
                files[on] = self.write("-".join(on) + "_.json", report(on, factors))
        return files.pop(()), files.pop(tuple(PARTS)), list(files.values())

    def test_shares_of_independent_parts_are_their_factors(self):
        baseline, optimized, parts = self.everything()
        out = self.path("out.json")
        done = self.compare("--baseline", baseline, "--optimized", optimized, "--parts", *parts, "--json", out,
                            "--svg", self.path("out.svg"))
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out) as file:
            entry = json.load(file)["streams"][0]
        self.assertAlmostEqual(entry["gain"], 1.2 * 1.1 * 1.05 - 1)
        for part in entry["parts"]:
            for way in ("alone", "last", "share"):
                self.assertAlmostEqual(part[way], FACTORS[part["part"]] - 1)
        self.assertEqual([check["verdict"] for check in entry["verdicts"]], ["met"] * 5)
        with open(self.path("out.svg")) as file:
            self.assertIn("<svg", file.read())

    def test_what_gains_too_little_is_missed(self):
        baseline, optimized, parts = self.everything(dict(zip(PARTS, (1.05, 1.0, 1.01))))
        done = self.compare("--baseline", baseline, "--optimized", optimized, "--parts", *parts)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("missed"), 5)
        self.assertIn("under the minimum", done.stdout)

    def test_without_the_runs_between_shares_are_unknown(self):
        done = self.compare("--baseline", self.write("a", report([])), "--optimized", self.write("b", report(PARTS)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("unknown"), 3)
        self.assertEqual(done.stdout.count(" met"), 2)

    def test_what_else_can_be_switched_off_is_told_by_itself(self):
        baseline, optimized, parts = self.everything()
        slower = report(PARTS, settings=["gpu_optimizations.command_buffer_ring.steps_in_flight=1"])
        slower["results"][0]["tokens_per_s"] /= 1.25
        out = self.path("out.json")
        # The order does not matter: this is not taken for the run with everything on.
        for files in ([*parts, self.write("ahead", slower)], [self.write("ahead", slower), *parts]):
            done = self.compare("--baseline", baseline, "--optimized", optimized, "--parts", *files, "--json", out)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out) as file:
                entry = json.load(file)["streams"][0]
            self.assertAlmostEqual(entry["gain"], 1.2 * 1.1 * 1.05 - 1)
            self.assertEqual([extra["name"] for extra in entry["extras"]], ["steps ahead"])
            self.assertAlmostEqual(entry["extras"][0]["last"], 0.25)

    def test_a_peer_gets_the_same_requests_in_turns(self):
        # Stands in for bench-serving-load: prints its arguments, and figures by which the peer is half as fast.
        log = self.path("calls")
        program = self.path("bench-serving-load")
        with open(program, "w") as file:
            file.write(f"""#!{sys.executable}
import json, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
rate = 50.0 if "--peer" in arguments else 100.0
result = {{"streams": 4, "tokens_per_s": rate, "requests_per_s": rate / 10, "ttft_p50_ms": 1000 / rate, "ttft_p95_ms": 1100 / rate,
          "ttft_p99_ms": 1200 / rate, "inter_token_p50_ms": 900 / rate, "inter_token_p99_ms": 950 / rate}}
with open(arguments[arguments.index("--json") + 1], "w") as out:
    json.dump({{"benchmark": "serving-load", "device": "made up", "model": "m", "prompt": 8, "tokens": 8, "vocabulary": 77,
               "results": [result]}}, out)
""")
        os.chmod(program, 0o700)
        run = self.path("run")
        done = self.compare("--peer", "http://127.0.0.1:1", "--run", run, "--model", "m", "--bin", self.folder.name, "--turns", "2",
                            "--streams", "4", "--", "--tokens", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(log) as file:
            calls = [json.loads(line) for line in file]
        self.assertEqual(["--peer" in call for call in calls], [False, True, True, False])
        for call in calls:
            self.assertEqual(call[-2:], ["--tokens", "8"])
            if "--peer" in call:
                self.assertEqual(call[call.index("--vocabulary") + 1], "77")
        with open(os.path.join(run, "compare.json")) as file:
            entry = json.load(file)["streams"][0]
        self.assertEqual((entry["ours"]["tokens_per_s"], entry["peer"]["tokens_per_s"]), (100.0, 50.0))
        self.assertIn("+100.0 %", done.stdout)
        with open(os.path.join(run, "compare.svg")) as file:
            self.assertIn("Bulkhead", file.read())
        self.assertIn("needs --run", self.compare("--peer", "http://127.0.0.1:1").stderr)

    def test_runs_that_can_not_be_compared_are_refused(self):
        baseline, optimized = self.write("a", report([])), self.write("b", report(PARTS, device="another"))
        self.assertIn("differ in device", self.compare("--baseline", baseline, "--optimized", optimized).stderr)
        self.assertIn("all parts on", self.compare("--baseline", baseline, "--optimized", baseline).stderr)
        broken = self.path("broken")
        with open(broken, "w") as file:
            file.write("{")
        self.assertNotEqual(self.compare("--baseline", broken, "--optimized", baseline).returncode, 0)


unittest.main()
