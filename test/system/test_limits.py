"""Limits hold beside a neighbour whose latency is watched."""

import os
import pathlib
import statistics
import time

import pytest
from e2b import Sandbox

pytestmark = pytest.mark.alone


def latency(sandbox, rounds=8):
    times = []
    for _ in range(rounds):
        start = time.monotonic()
        assert sandbox.commands.run("echo x", timeout=60).stdout == "x\n"
        times.append(time.monotonic() - start)
    return statistics.median(times)


@pytest.mark.parametrize("name, attack", [
    ("fork bomb", "bash -c ':(){ :|:& };:'"),
    ("allocator", "python3 -c \"b=[]\nwhile True: b.append(bytearray(1<<22))\""),
    ("disk filler", "while true; do dd if=/dev/zero of=/home/user/fill bs=1M count=256 conv=fsync 2>/dev/null; done"),
])
def test_a_neighbour_stays_usable(neighbour, make, name, attack):
    attacker = make()
    quiet = latency(neighbour)
    attacker.commands.run(attack, background=True, timeout=0)
    time.sleep(3)
    loud = latency(neighbour)
    print(f"\n{name}: neighbour's `echo` median {quiet * 1000:.0f} ms quiet, {loud * 1000:.0f} ms beside it")
    assert attacker.kill() is True
    assert latency(neighbour, 3) < 30


def test_host_limits_hold_for_the_machine_itself(platform, make):
    """What a taken-over VMM could use: memory, processes and CPU of its control group."""
    before = set(platform.vmm_pids())
    make()
    pid = (set(platform.vmm_pids()) - before).pop()
    groups = dict(line.split(":")[1:] for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    if "memory" in groups:
        limit = int(pathlib.Path("/sys/fs/cgroup/memory" + groups["memory"], "memory.limit_in_bytes").read_text())
        pids = pathlib.Path("/sys/fs/cgroup/pids" + groups["pids"], "pids.max").read_text().strip()
    else:
        limit = int(pathlib.Path("/sys/fs/cgroup" + groups[""], "memory.max").read_text())
        pids = pathlib.Path("/sys/fs/cgroup" + groups[""], "pids.max").read_text().strip()
    # The guest's memory, and what the worker reserves beside it for a VMM (vmm::overhead_mib), not a byte more.
    assert limit == (512 + 96 + (64 if platform.accelerator == "tcg" else 0)) << 20
    # Room for the 64 threads that QEMU may use for the disk, and no more than a few beside them.
    assert pids != "max" and int(pids) <= 96
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert "CapEff:\t0000000000000000" in status and "CapPrm:\t0000000000000000" in status


# -- what one sandbox may move ------------------------------------------------------------------------------------------

SLOW = {"--net-mib-per-s-max": 1, "--disk-mib-per-s-max": 4, "--disk-ops-per-s-max": 100}
DEFAULTS = {"--net-mib-per-s-max": 64, "--disk-mib-per-s-max": 256, "--disk-ops-per-s-max": 20000}
MOVED_MIB = 6
READ_OPS = """
import mmap, os, time
fd, page = os.open("/home/user/ops", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
start = time.monotonic()
for i in range(300): os.preadv(fd, [page], (i * 37 % 1024) * 4096)
print(time.monotonic() - start)
"""


def seconds(action) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


def speeds(sandbox) -> dict[str, float]:
    """How long a sandbox takes to move a little, in each direction and each kind."""
    body = os.urandom(MOVED_MIB << 20)  # nothing that gzip on the way would shrink
    took = {"in": seconds(lambda: sandbox.files.write("/dev/shm/moved", body, request_timeout=120))}
    took["out"] = seconds(lambda: sandbox.files.read("/dev/shm/moved", format="bytes", request_timeout=120))
    # As root: a reserve of the file system is no matter here. Direct: the guest's page cache is no disk.
    took["disk"] = seconds(lambda: sandbox.commands.run(
        "dd if=/dev/zero of=/home/user/ops bs=1M count=16 oflag=direct 2>&1", user="root", timeout=120))
    took["ops"] = float(sandbox.commands.run(f"python3 -c '{READ_OPS}'", timeout=120).stdout)
    return took


def restart_with(platform, options: dict[str, int]) -> None:
    platform.down()
    standing, platform.up_options = platform.up_options, [str(word) for pair in options.items() for word in pair]
    try:
        platform.up()
    finally:
        platform.up_options = standing


def test_disk_and_network_rates_are_settings_and_hold(platform):
    """The last one of this file: the restarts end every sandbox, the neighbour too."""
    sandbox = Sandbox.create(timeout=600)
    fast = speeds(sandbox)
    restart_with(platform, SLOW)
    try:
        sandbox = Sandbox.create(timeout=600)
        slow = speeds(sandbox)
        sandbox.kill()
    finally:
        restart_with(platform, DEFAULTS)
    print(f"\n{MOVED_MIB} MiB in and out, 16 MiB of disk, 300 reads: default {fast}, limited {slow}")
    # What is moved beyond the burst (of the network's policer: two seconds' worth) cannot be faster than the limit says.
    assert slow["in"] > (MOVED_MIB - 2) / 1 * 0.9 and slow["out"] > (MOVED_MIB - 2) / 1 * 0.9, slow
    assert slow["disk"] > (16 - 4) / 4 * 0.9 and slow["ops"] > (300 - 100) / 100 * 0.9, slow
    # The controls: it is the limit that slows, not the path.
    for kind in fast:
        assert slow[kind] > 2 * fast[kind], (kind, fast, slow)
