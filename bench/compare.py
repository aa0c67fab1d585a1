#!/usr/bin/env python3
"""Creates of this platform beside its peers, in one run on one host: create -> running -> first output.

  sudo bench/compare.py --count 10 --json bench/results/NAME.json
  bench/table.py bench/results/NAME.json        # writes the table into docs/benchmarks.md

Ours, in an installation of its own that is removed afterwards (`space bench create` measures each):
  warm machine, base snapshot, cold boot.
Peers, each running `/bin/echo first` once from nothing on the same template's root file system, read-only:
  bwrap, crun, runsc (gVisor, platform ptrace), and a bare QEMU that boots our kernel to a first process.
A peer that is not installed is installed from bench/packages.txt with --install, else named as not measured.
"""
import argparse
import contextlib
import datetime
import gzip
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test" / "support"))
from platform_under_test import Platform, eventually  # noqa: E402

FIRST = "first\n"


def summary(values):
    values = sorted(values)
    pick = lambda share: round(values[min(int(share * (len(values) - 1) + 0.5), len(values) - 1)], 2)
    return {"n": len(values), "p50": pick(0.5), "p90": pick(0.9), "min": pick(0), "max": pick(1)} if values else {"n": 0}


# --- ours ---------------------------------------------------------------------------------------------------


def reconfigure(platform, **values):
    """The supervisor starts the worker again, which reads its configuration anew."""
    file = platform.run_dir / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    before = platform.service_pid("space-worker")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: platform.service_pid("space-worker") != before and platform.worker("/node"), 60, "the worker is back")


def ours(platform, way, count, settle):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        platform.space("bench", "create", "--count", str(count), "--settle", str(settle), "--json-file", out.name,
                       check=False, timeout=60 + count * (60 + settle))
        document = json.load(open(out.name))
    return {"name": way, "kind": "space", "document": document}


def measure_ours(platform, count):
    yield ours(platform, "base snapshot", count, 0)
    reconfigure(platform, warm_target=2)
    eventually(lambda: any(one["ready"] >= 2 for one in platform.worker("/node")["warm"]), 300, "two warm machines wait")
    yield ours(platform, "warm machine", count, 8)
    reconfigure(platform, warm_target=0, base_snapshots=False)
    yield ours(platform, "cold boot", count, 0)


# --- peers --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def root_of_template(platform):
    disk = next((platform.data_dir / "pool" / "templates").glob("*/disk.img"))
    with tempfile.TemporaryDirectory(prefix="bench-root.") as directory:
        subprocess.run(["mount", "-o", "loop,ro,noload", str(disk), directory], check=True)
        try:
            yield pathlib.Path(directory)
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


def bundle(root, directory):
    (directory / "config.json").write_text(json.dumps({
        "ociVersion": "1.0.2",
        "process": {"terminal": False, "user": {"uid": 0, "gid": 0}, "args": ["/bin/echo", "first"],
                    "env": ["PATH=/usr/bin:/bin"], "cwd": "/"},
        "root": {"path": str(root), "readonly": True},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                   {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]},
    }))


def run_to_first_output(argv, name, limit=60):
    """Milliseconds until the process has written what it should; None and why when it never did."""
    with tempfile.TemporaryFile() as errors:
        started = time.monotonic()
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            said, took = b"", 0.0
            right = lambda: FIRST in said.replace(b"\r", b"").decode(errors="replace")
            while not right() and took < limit:
                ready, _, _ = select.select([process.stdout], [], [], limit - took)
                part = os.read(process.stdout.fileno(), 4096) if ready else b""
                took = time.monotonic() - started
                said += part
                if not part:
                    break
            if not right():
                errors.seek(0)
                return None, f"{name}: {said[-200:]!r} {errors.read()[-200:]!r}"
            return took * 1000, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def qemu_parts(platform, directory):
    """Our kernel and an initramfs of one static program that says "first": nothing of ours runs in it."""
    (directory / "init.c").write_text(
        '#include <stdio.h>\n#include <unistd.h>\n#include <sys/reboot.h>\n'
        'int main(void) { puts("first"); fflush(stdout); reboot(RB_AUTOBOOT); for (;;) pause(); }\n')
    tree = directory / "tree"
    (tree / "dev").mkdir(parents=True)
    subprocess.run(["cc", "-static", "-Os", "-o", str(tree / "init"), str(directory / "init.c")], check=True)
    os.mknod(tree / "dev" / "console", 0o600 | 0o020000, os.makedev(5, 1))
    archive = subprocess.run("find . | cpio -o -H newc --quiet", shell=True, cwd=tree, check=True, capture_output=True).stdout
    (directory / "initrd.gz").write_bytes(gzip.compress(archive))
    guest = json.loads((platform.run_dir / "config.json").read_text()).get("guest_dir") or platform.data_dir / "guest"
    return pathlib.Path(guest) / "vmlinux", directory / "initrd.gz"


def tsc_khz():
    """As the platform's own machines are told it: without it a guest may hang in its calibration."""
    found = re.search(r"cpu MHz\s*: ([\d.]+)", pathlib.Path("/proc/cpuinfo").read_text())
    return int(float(found.group(1)) * 1000) if found else 0


def peers(platform, root, work):
    bundles = work / "bundle"
    bundles.mkdir()
    bundle(root, bundles)
    kernel, initrd = qemu_parts(platform, work)
    # crun knows whole version 1 or version 2 hierarchies only; it shall limit nothing here, so show it none.
    hide = "mount --make-rprivate / && mount -t tmpfs none /sys/fs/cgroup && exec "
    yield "bwrap", "bwrap", "namespaces, one process", lambda i: [
        "bwrap", "--ro-bind", str(root), "/", "--unshare-all", "--proc", "/proc", "--dev", "/dev", "/bin/echo", "first"]
    yield "crun", "crun", "namespaces, an OCI bundle", lambda i: [
        "unshare", "-m", "sh", "-c", hide + f"crun --root {work}/crun --cgroup-manager=disabled run -b {bundles} bench{i}"]
    yield "runsc", "gVisor (runsc, ptrace)", "a kernel in user space, an OCI bundle", lambda i: [
        "runsc", "--root", f"{work}/runsc", "--platform=ptrace", "--network=none", "--ignore-cgroups", "run", "-bundle",
        str(bundles), f"bench{i}"]
    yield "qemu-system-x86_64", "QEMU alone, software emulation", "our kernel to a first static process, no disk, no network", lambda i: [
        "qemu-system-x86_64", "-M", "microvm,acpi=on,rtc=on", "-accel", "tcg,thread=multi,tb-size=64", "-cpu", "max", "-smp", "1",
        "-m", "512", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-kernel", str(kernel), "-initrd",
        str(initrd), "-append", f"console=ttyS0 quiet reboot=t panic=-1 no_timer_check tsc_early_khz={tsc_khz()} tsc=reliable "
        "mitigations=off", "-serial", "stdio"]


def measure_peers(platform, count):
    with root_of_template(platform) as root, tempfile.TemporaryDirectory(prefix="bench.") as directory:
        for program, name, what, argv in peers(platform, root, pathlib.Path(directory)):
            one = {"name": name, "kind": "peer", "what": what, "count": count}
            if not shutil.which(program):
                one["not_measured"] = f"{program} is not installed (bench/packages.txt)"
            else:
                took, errors = [], []
                run_to_first_output(argv("w"), name)  # once for the page cache, as the template of ours is in it
                for i in range(count):
                    ms, why = run_to_first_output(argv(i), name)
                    took.append(ms) if ms is not None else errors.append(why)
                one.update(first_output_ms=summary(took), success_rate=len(took) / count, errors=errors[:3])
            yield one


def host_facts():
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {"cores": os.cpu_count(), "processor": cpu.group(1) if cpu else "", "kernel": os.uname().release,
            "load": round(os.getloadavg()[0], 2)}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=10)
    options.add_argument("--json", type=pathlib.Path, required=True)
    options.add_argument("--install", action="store_true", help="install the peers' Debian packages first")
    options.add_argument("--build", default="dev", choices=["dev", "release"])
    given = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("compare.py needs root: it starts machines and mounts a template")
    if given.install:
        wanted = [line for line in (ROOT / "bench" / "packages.txt").read_text().split("\n") if line and line[0] != "#"]
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *wanted], check=True, stdout=subprocess.DEVNULL)
    document = {"what": "compare", "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "build": given.build, "host": host_facts(), "rows": []}
    platform = Platform()
    try:
        platform.start()
        for source in (measure_ours, measure_peers):
            for row in source(platform, given.count):
                document["rows"].append(row)
                print(json.dumps({key: row[key] for key in row if key != "document"}), flush=True)
        document["host"]["load_after"] = round(os.getloadavg()[0], 2)
    finally:
        platform.destroy()
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(row.get("success_rate", 1) == 1 for row in document["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
