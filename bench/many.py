#!/usr/bin/env python3
"""Many sandboxes: a hundred at once, hundreds in a row, and what an idle one holds of the host's memory.

  sudo bench/many.py --json bench/results/NAME.json [--parts burst,memory] [--burst 100] [--row 500] [--touch-mib 4096]
  bench/table.py bench/results/NAME.json

- burst: so many creates at the same moment, none of them by a warm machine, beside the processor time of one create
  (of the whole host, over ten in a row). The limits of memory, vCPUs and disk are raised for it: with
  those that an installation has by itself, this many are refused, and that is right;
- row: creates and deletes one after the other: is the last tenth as quick as the first, and does anything stay behind;
- memory: private pages of idle clones, the guest's and the emulator's, with translation caches of 32, 64 and 128 MiB,
  and what programs cost in each.
"""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare import ROOT, host_facts, reconfigure, summary  # noqa: E402

sys.path.insert(0, str(ROOT / "test" / "support"))
from platform_under_test import ApiError, Platform, eventually  # noqa: E402

PROGRAMS = ("space-api", "space-controller", "space-proxy", "space-worker", "space-hostd")
USES = {"bash -l -c": ["/bin/bash", "-l", "-c", "echo x"], "python3 -c": ["/usr/bin/python3", "-c", "import json, re; print('x')"]}


def busy_ms():
    """Processor time that the host has spent on anything, all cores together."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, pathlib.Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) * 1000 / os.sysconf("SC_CLK_TCK")


def private_kib(pid, guest_mib):
    """(guest, rest): private pages of the mapping that is the guest's memory, and of everything else in the process."""
    guest = rest = 0
    size = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            size = last - first
        elif line.startswith(("Private_Clean:", "Private_Dirty:")):
            kib = int(line.split()[1])
            if size == guest_mib << 20:
                guest += kib
            else:
                rest += kib
    return guest, rest


def touch(mib):
    """Has a process write to so many MiB and end, twice; (first, again): at how many MB per second of processor time.

    Where a hypervisor takes back what its machine has freed, the first touch of a page costs several times a later one.
    """
    if not mib:
        return None, None
    program = ("import mmap, time; size = %d << 20; memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
               "for at in range(0, size, 4096): memory[at] = 1\n"
               "print(size / 1e6 / time.process_time())" % mib)
    rates = [float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout) for _ in range(2)]
    return round(rates[0]), round(rates[1])


class Many:
    def __init__(self, platform):
        self.platform = platform
        self.errors = []

    def create(self):
        started = time.monotonic()
        made = self.platform.api("POST", "/v1/sandboxes?wait=300", {"timeout_s": 3600}, timeout=400)["sandbox"]
        assert made["state"] == "running", made
        return (time.monotonic() - started) * 1000, made["id"]

    def delete(self, sandbox):
        self.platform.api("DELETE", f"/v1/sandboxes/{sandbox}?wait=120", timeout=200)

    def run(self, sandbox, argv):
        started = time.monotonic()
        done = self.platform.api("POST", f"/v1/sandboxes/{sandbox}/commands?wait=120", {"argv": argv}, timeout=200)
        assert done.get("exit_code") == 0, done
        return (time.monotonic() - started) * 1000

    def attempt(self, what, call):
        try:
            return call()
        except (AssertionError, ApiError, OSError, LookupError, ValueError) as error:
            self.errors.append(f"{what}: {error}"[:300])
            return None

    def idle_memory(self):
        """Of every machine, once none of them has done anything for a while."""
        time.sleep(5)
        pairs = [private_kib(pid, 512) for pid in self.platform.vmm_pids()]
        return {"machines": len(pairs), "guest_mib": summary([guest / 1024 for guest, _ in pairs]),
                "rest_mib": summary([rest / 1024 for _, rest in pairs])}

    def burst(self, count, touch_mib):
        first, again = touch(touch_mib)
        before = busy_ms()
        one = [self.create() for _ in range(10)]
        each_ms = (busy_ms() - before) / 10
        for _, sandbox in one:
            self.delete(sandbox)
        time.sleep(2)
        held = {name: len(things) for name, things in self.platform.holdings().items()}
        touch(touch_mib)
        with concurrent.futures.ThreadPoolExecutor(count) as at_once:
            started, before = time.monotonic(), busy_ms()
            made = list(at_once.map(lambda _: self.attempt("create", self.create), range(count)))
            wall_ms, burned_ms = (time.monotonic() - started) * 1000, busy_ms() - before
            running = [one for one in made if one]
            memory = self.idle_memory()
            list(at_once.map(lambda one: self.attempt("delete", lambda: self.delete(one[1])), running))
        left = self.attempt("what stays", lambda: eventually(
            lambda: {name: len(things) for name, things in self.platform.holdings().items()} == held, 60, "nothing stays"))
        return {"count": count, "succeeded": len(running), "one_ms": summary([took for took, _ in one]), "cpu_of_one_ms": round(each_ms, 1),
                "wall_ms": round(wall_ms), "cpu_ms": round(burned_ms), "create_ms": summary([took for took, _ in running]),
                "memory": memory, "nothing_stays": left is not None, "touched_mib": touch_mib,
                "touch_mb_per_s": {"first": first, "again": again}}

    def held_by_programs(self):
        out = {}
        for name in PROGRAMS:
            pid = self.platform.service_pid(name)
            resident = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))
            out[name] = {"resident_kib": resident, "files": len(os.listdir(f"/proc/{pid}/fd"))}
        return out

    def row(self, count):
        for _ in range(5):  # what is allocated once
            self.delete(self.create()[1])
        held, creates, deletes, programs = None, [], [], []
        before = {name: len(things) for name, things in self.platform.holdings().items()}
        for number in range(count):
            if number % max(count // 10, 1) == 0:
                programs.append(self.held_by_programs())
            made = self.attempt("create", self.create)
            if not made:
                continue
            creates.append(made[0])
            started = time.monotonic()
            self.attempt("delete", lambda: self.delete(made[1]))
            deletes.append((time.monotonic() - started) * 1000)
        programs.append(self.held_by_programs())
        held = {name: len(things) for name, things in self.platform.holdings().items()}
        tenth = max(len(creates) // 10, 1)
        return {"count": count, "succeeded": len(creates), "create_first_ms": summary(creates[:tenth]), "create_last_ms": summary(creates[-tenth:]),
                "delete_first_ms": summary(deletes[:tenth]), "delete_last_ms": summary(deletes[-tenth:]),
                "held_before": before, "held_after": held, "programs": programs}

    def memory(self, count):
        rows = []
        for cache_mib in (32, 64, 128):
            reconfigure(self.platform, translation_cache_mib=cache_mib)
            made = [self.create()[1] for _ in range(count)]
            row = {"translation_cache_mib": cache_mib, "idle": self.idle_memory(), "uses": {}}
            for name, argv in USES.items():
                took = [[self.run(sandbox, argv) for _ in range(4)] for sandbox in made]
                row["uses"][name] = {"first_ms": summary([one[0] for one in took]), "later_ms": summary([t for one in took for t in one[2:]])}
            row["used"] = self.idle_memory()
            rows.append(row)
            for sandbox in made:
                self.delete(sandbox)
        return rows


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=pathlib.Path, required=True, help="parts that the file has and --parts does not name are kept")
    options.add_argument("--parts", default="burst,row,memory")
    options.add_argument("--burst", type=int, default=100)
    options.add_argument("--touch-mib", type=int, default=0, help="memory of the host that a process touches before the burst and gives back")
    options.add_argument("--row", type=int, default=500)
    options.add_argument("--clones", type=int, default=3, help="of the part memory, for each size")
    options.add_argument("--build", default="dev", choices=["dev", "release"])
    given = options.parse_args()
    parts = given.parts.split(",")
    if os.geteuid() != 0:
        sys.exit("many.py needs root: it starts machines")
    document = json.loads(given.json.read_text()) if given.json.exists() else {}
    document.update(what="many", at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                    build=given.build, host=host_facts(), errors=[])
    platform = Platform()
    platform.volume_mib = 5 * 1024 * (given.burst + 20)
    # What a machine really uses is a tenth of what is reserved for it.
    platform.up_options = ["--memory-mib-max", str(1024 * (given.burst + 16)), "--vcpus-max", str(given.burst + 16),
                           "--slots-max", str(given.burst + 28), "--pool-mib-max", str(5 * 1024 * (given.burst + 16))]
    many = Many(platform)
    try:
        platform.start()
        node = platform.worker("/node")
        document.update(driver=node["driver"], accelerator=node["accelerator"])
        for name, measure in (("burst", lambda: many.burst(given.burst, given.touch_mib)), ("row", lambda: many.row(given.row)),
                              ("memory", lambda: many.memory(given.clones))):
            if name in parts:
                document[name] = measure()
                print(json.dumps({name: document[name]}), flush=True)
        document["host"]["load_after"] = round(os.getloadavg()[0], 2)
    finally:
        platform.destroy()
        document["errors"] = many.errors
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    for error in many.errors:
        print("failed:", error)
    return 1 if many.errors else 0


if __name__ == "__main__":
    sys.exit(main())
