"""Limits hold beside a neighbour whose latency is watched."""

import statistics
import time

import pytest


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
    import pathlib
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
    assert 512 << 20 < limit < 1 << 30
    # Room for the 64 threads that QEMU may use for the disk, and no more than a few beside them.
    assert pids != "max" and int(pids) <= 96
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert "CapEff:\t0000000000000000" in status and "CapPrm:\t0000000000000000" in status
