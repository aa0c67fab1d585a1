#!/usr/bin/env python3
"""What a life costs beside its create: first use, suspend, resume and fork, each beside its yardstick of the same run.

  sudo bench/lives.py --count 5 --json bench/results/NAME.json
  bench/table.py bench/results/NAME.json

- first use: the first `/bin/echo`, `bash -l -c` and `python3 -c` of a fresh sandbox (a warm machine), beside the same in a
  sandbox that has run each of them ten times;
- suspend of a sandbox with 50 MiB of changed memory, in time and bytes, beside writing 50 MiB with fsync to the same pool;
- resume of it, to the answer `running`, beside a create from the base snapshot; and to a first command's output;
- fork of one, until its copy runs, beside that create; and how long its parent stands still meanwhile, seen from outside:
  the longest silence of a program in it that echoes each byte, less the usual one.

`--parts suspend` measures only that and keeps the rest of an existing file.
"""
import argparse
import datetime
import json
import os
import pathlib
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare import ROOT, host_facts, reconfigure, summary  # noqa: E402

sys.path.insert(0, str(ROOT / "test" / "support"))
from platform_under_test import ApiError, Platform, eventually  # noqa: E402

USES = {"direct": ["/bin/echo", "x"], "bash -l -c": ["/bin/bash", "-l", "-c", "echo x"], "python3 -c": ["/usr/bin/python3", "-c", "print('x')"]}
MIB = 1 << 20
# Writes so much memory that it holds, says so, and stays.
DIRTY = ("import mmap,os,time\nb=mmap.mmap(-1,{mib}<<20)\nfor i in range({mib}): b[i<<20:(i+1)<<20]=os.urandom(1<<20)\n"
         "open('/var/tmp/dirty','w').write('ok')\ntime.sleep(1e6)")

ECHO = """import socket
listener = socket.create_server(('0.0.0.0', 7777))
while True:
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while part := peer.recv(64):
        peer.sendall(part)
"""


class Echo:
    """Asks a program in a sandbox for an answer, again and again, over a socket of its own."""

    def __init__(self, platform, sandbox):
        with socket.socket(socket.AF_UNIX) as dial:
            dial.settimeout(10)
            dial.connect(str(platform.run_dir / "worker" / "dial.sock"))
            dial.sendall(json.dumps({"sandbox": sandbox, "epoch": 1, "port": 7777}).encode() + b"\n")
            reply, descriptors, _, _ = socket.recv_fds(dial, 4096, 1)
        assert descriptors, reply
        self.line = socket.socket(fileno=descriptors[0])
        self.line.setblocking(True)
        self.line.settimeout(30)
        self.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.line.sendall(b"x")  # refused while the program does not listen yet
        assert self.line.recv(1) == b"x"
        self.silences, self.over = [], threading.Event()
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()

    def ask(self):
        while not self.over.is_set():
            started = time.monotonic()
            self.line.sendall(b"x")
            if not self.line.recv(1):
                return
            self.silences.append((time.monotonic() - started) * 1000)
            time.sleep(0.001)

    def longest(self):
        """Since the last call."""
        out = max(self.silences, default=0)
        self.silences.clear()
        return out

    def close(self):
        self.over.set()
        self.thread.join()
        self.line.close()


class Lives:
    def __init__(self, platform, count):
        self.platform, self.count = platform, count
        self.errors = []

    def timed(self, method, path, body=None):
        started = time.monotonic()
        answer = self.platform.api(method, path, body, timeout=180)
        return (time.monotonic() - started) * 1000, answer

    def create(self):
        took, made = self.timed("POST", "/v1/sandboxes?wait=120", {"timeout_s": 3600})
        assert made["sandbox"]["state"] == "running", made
        return took, made["sandbox"]["id"]

    def run(self, sandbox, argv, wait=120):
        took, done = self.timed("POST", f"/v1/sandboxes/{sandbox}/commands?wait={wait}", {"argv": argv})
        assert done.get("exit_code") == 0, done
        return took, done.get("stdout", "")

    def begin(self, sandbox, argv):
        self.platform.api("POST", f"/v1/sandboxes/{sandbox}/commands", {"argv": argv, "timeout_s": 3600})

    def delete(self, sandbox):
        self.platform.api("DELETE", f"/v1/sandboxes/{sandbox}?wait=60")

    def wait_for_warm(self):
        eventually(lambda: any(one["ready"] >= 2 for one in self.platform.worker("/node")["warm"]), 300, "two warm machines wait")

    def tries(self, what, one):
        """`count` times; a try that fails is kept with its reason."""
        out = []
        for _ in range(self.count):
            try:
                out.append(one())
            except (AssertionError, ApiError, OSError, LookupError, ValueError) as error:
                self.errors.append(f"{what}: {error}"[:300])
        return out

    def first_use(self):
        """One fresh sandbox for each figure: the second thing that a sandbox does is not its first."""
        used = self.create()[1]
        rows = {}
        for name, argv in USES.items():
            for _ in range(10):
                self.run(used, argv)
            long_used = summary([self.run(used, argv)[0] for _ in range(self.count)])

            def fresh():
                self.wait_for_warm()
                sandbox = self.create()[1]
                try:
                    return self.run(sandbox, argv)[0]
                finally:
                    self.delete(sandbox)

            rows[name] = {"first": summary(self.tries(f"first {name}", fresh)), "long_used": long_used}
        self.delete(used)
        return rows

    def write_to_pool(self, mib):
        path = self.platform.data_dir / "pool" / "bench.bin"
        data = os.urandom(MIB) * mib
        started = time.monotonic()
        with open(path, "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        took = (time.monotonic() - started) * 1000
        path.unlink()
        return took

    def suspends(self, mib):
        creates, suspends, resumes, outputs, sizes, writes = [], [], [], [], [], []

        def one():
            took, sandbox = self.create()
            try:
                creates.append(took)
                self.begin(sandbox, ["/usr/bin/python3", "-c", DIRTY.format(mib=mib)])
                eventually(lambda: self.run(sandbox, ["/bin/sh", "-c", "cat /var/tmp/dirty 2>/dev/null; true"])[1] == "ok", 60, "the memory is changed")
                writes.append(self.write_to_pool(mib))
                suspends.append(self.timed("POST", f"/v1/sandboxes/{sandbox}/suspend?wait=120")[0])
                row = self.platform.api("GET", f"/v1/sandboxes/{sandbox}")
                assert row["state"] == "suspended", row
                sizes.append(row.get("suspended_bytes", 0) / MIB)
                started = time.monotonic()
                resumes.append(self.timed("POST", f"/v1/sandboxes/{sandbox}/resume?wait=120", {})[0])
                self.run(sandbox, ["/bin/echo", "x"])
                outputs.append((time.monotonic() - started) * 1000)
            finally:
                self.delete(sandbox)

        self.tries("suspend", one)
        return {"dirty_mib": mib, "create_ms": summary(creates), "suspend_ms": summary(suspends), "suspended_mib": summary(sizes),
                "write_fsync_ms": summary(writes), "resume_ms": summary(resumes), "resume_to_output_ms": summary(outputs)}

    def parts_of_stops(self, sandboxes):
        """What the worker's log says of how these stood still, in ms."""
        with open(self.platform.data_dir / "log" / "space-worker.jsonl") as log:
            stops = [json.loads(line) for line in log if '"sandbox_stood_still"' in line]
        stops = [one for one in stops if one["sandbox"] in sandboxes]
        return {part: summary([one[part] for one in stops]) for part in ("stop_ms", "devices_ms", "copy_ms", "resume_ms", "finish_ms")}

    def forks(self, mib):
        """How long the parent stands still is not for the guest to say: its clock stands still with it."""
        forks, silences, usual, told, sizes, parents = [], [], [], [], [], []

        def stands_still(sandbox, echo):
            """Of a snapshot, which is what a fork stops its parent for; the worker says what it kept and how long it took."""
            echo.longest()
            time.sleep(1)
            usual.append(echo.longest())
            self.platform.api("POST", f"/v1/sandboxes/{sandbox}/snapshots?wait=60", {"name": f"bench-{len(told)}-{mib}"})
            silences.append(echo.longest())
            report = self.platform.worker("/snapshots")["snapshots"][0]
            told.append(report["paused_ms"])
            sizes.append(report["bytes"] / MIB)
            for row in self.platform.api("GET", "/v1/snapshots")["snapshots"]:
                self.platform.api("DELETE", f"/v1/snapshots/{row['id']}")

        def one():
            sandbox, made = self.create()[1], []
            parents.append(sandbox)
            try:
                self.begin(sandbox, ["/usr/bin/python3", "-c", DIRTY.format(mib=mib)])
                eventually(lambda: self.run(sandbox, ["/bin/sh", "-c", "cat /var/tmp/dirty 2>/dev/null; true"])[1] == "ok", 60, "the memory is changed")
                self.begin(sandbox, ["/usr/bin/python3", "-c", ECHO])
                echo = eventually(lambda: Echo(self.platform, sandbox), 60, "the program answers")
                try:
                    eventually(lambda: echo.silences, 30, "an answer came")
                    stands_still(sandbox, echo)
                finally:
                    echo.close()
                took, answer = self.timed("POST", f"/v1/sandboxes/{sandbox}/fork", {"count": 1})
                made += [one["sandbox"]["id"] for one in answer["forks"] if "sandbox" in one]
                assert made, answer
                forks.append(took)
            finally:
                for id in [*made, sandbox]:
                    self.delete(id)

        self.tries("fork", one)
        return {"dirty_mib": mib, "fork_ms": summary(forks), "silence_ms": summary(silences), "usual_silence_ms": summary(usual),
                "told_ms": summary(told), "kept_mib": summary(sizes), "parts": self.parts_of_stops(parents)}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=5)
    options.add_argument("--json", type=pathlib.Path, required=True)
    options.add_argument("--parts", default="suspend,fork,fork_large,first_use")
    options.add_argument("--build", default="dev", choices=["dev", "release"])
    given = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("lives.py needs root: it starts machines")
    parts = given.parts.split(",")
    document = json.loads(given.json.read_text()) if given.json.exists() else {}
    document |= {"what": "lives", "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "build": given.build, "count": given.count, "host": host_facts()}
    platform = Platform()
    lives = Lives(platform, given.count)
    try:
        platform.start()
        node = platform.worker("/node")
        document.update(driver=node["driver"], accelerator=node["accelerator"])
        for name, measure in (("suspend", lambda: lives.suspends(50)), ("fork", lambda: lives.forks(50)), ("fork_large", lambda: lives.forks(200))):
            if name not in parts:
                continue
            document[name] = measure()
            print(json.dumps({name: document[name]}), flush=True)
        if "first_use" in parts:
            reconfigure(platform, warm_target=2)
            lives.wait_for_warm()
            document["first_use"] = lives.first_use()
            print(json.dumps(document["first_use"]), flush=True)
        document["host"]["load_after"] = round(os.getloadavg()[0], 2)
    finally:
        platform.destroy()
        document["errors"] = lives.errors
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    for error in lives.errors:
        print("failed:", error)
    return 1 if lives.errors else 0


if __name__ == "__main__":
    sys.exit(main())
