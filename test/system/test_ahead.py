"""What is made ahead: the base snapshot that sandboxes go on from, and machines that wait. Nobody may notice which way a
sandbox came: each has its own identity, randomness and clock."""

import time

from e2b import Sandbox
from platform_under_test import eventually

# Each line in a process of its own, as a user's first ones.
FACTS = {
    "machine id": "cat /etc/machine-id",
    "host name": "hostname",
    "kernel's randomness": "head -c 16 /dev/urandom | od -An -tx1",
    "python uuid4": "python3 -c 'import uuid; print(uuid.uuid4())'",
    "python urandom": "python3 -c 'import os; print(os.urandom(16).hex())'",
    "python random": "python3 -c 'import random; print(random.random())'",
    "bash random": "bash -c 'echo $RANDOM$RANDOM$RANDOM$RANDOM'",
    "temporary name": "mktemp -u",
    # OpenSSL through Python: every template has that one.
    "openssl": "python3 -c 'import ssl; print(ssl.RAND_bytes(16).hex())'",
}
OWN = "SPACE_TEST_OWN"


def started_by(platform, sandbox) -> str:
    return platform.worker(f"/sandboxes/{sandbox.sandbox_id}")["started_by"]


def ready(platform) -> int:
    return sum(one["ready"] for one in platform.worker("/node")["warm"])


def facts_of(sandbox) -> dict[str, str]:
    return {name: sandbox.commands.run(command, timeout=120).stdout.strip() for name, command in FACTS.items()}


def check_clock(sandbox) -> None:
    before = time.time()
    inside = float(sandbox.commands.run("date +%s.%N").stdout)
    assert before - 0.5 <= inside <= time.time() + 0.5, (before, inside, time.time())


def check_apart(first, second) -> None:
    one, two = facts_of(first), facts_of(second)
    same = {name: value for name, value in one.items() if value == two[name]}
    assert not same, f"two sandboxes of one snapshot agree: {same}"
    for sandbox, facts in ((first, one), (second, two)):
        assert facts["host name"] == sandbox.sandbox_id
        assert len(facts["machine id"]) == 32
        assert sandbox.commands.run(f"echo ${OWN}").stdout.strip() == sandbox.own
        assert sandbox.commands.run("env | grep -c EXERCISE || true").stdout.strip() == "0", "the exercise left no trace"
        check_clock(sandbox)


def create(make, own: str):
    sandbox = make(envs={OWN: own})
    sandbox.own = own
    return sandbox


def timeline(platform, sandbox) -> list[str]:
    return [step["step"] for step in platform.api("GET", f"/v1/sandboxes/{sandbox.sandbox_id}?timeline=1")["timeline"]]


def test_clones_of_one_snapshot_share_nothing_that_they_must_not(platform, nothing_left, make):
    first, second = create(make, "one"), create(make, "two")
    assert [started_by(platform, one) for one in (first, second)] == ["base snapshot"] * 2
    assert "worker.restored" in timeline(platform, first)
    check_apart(first, second)
    # Written by one, unseen by the other: disk and memory are shared until they differ.
    first.files.write("/home/user/mine", "one")
    assert not second.files.exists("/home/user/mine")


def test_machines_that_wait_are_handed_out_and_replaced_and_go_with_the_platform(platform, make):
    platform.down()
    platform.up_options, standing = [*platform.up_options, "--warm-target", "2"], platform.up_options
    try:
        platform.up()
        eventually(lambda: ready(platform) == 2, 120, "two machines wait")
        assert len(platform.vmm_pids()) == 2
        assert platform.api("GET", "/v1/sandboxes?limit=100")["sandboxes"] == []
        first, second = create(make, "one"), create(make, "two")
        assert [started_by(platform, one) for one in (first, second)] == ["warm machine"] * 2
        assert "worker.claimed" in timeline(platform, first)
        check_apart(first, second)
        eventually(lambda: ready(platform) == 2, 120, "they are replaced")
        first.kill()
        second.kill()
        eventually(lambda: len(platform.vmm_pids()) == 2, 30, "only those that wait are left")
    finally:
        platform.down()
        assert platform.vmm_pids() == []
        platform.up_options = standing
        platform.up()
    assert ready(platform) == 0
    eventually(lambda: platform.holdings()["disks"] == set(), 30, "their disks are gone")
    again = make()
    assert started_by(platform, again) == "base snapshot", "the snapshot outlives the platform's end"
