"""Walks every named fault point that this installation can pass (support/fault_walk.py): who walks the others is said here, and
checked."""

import itertools
import json
import os
import signal
import subprocess
import sys

import pytest
from e2b import Sandbox
from fault_walk import all_points, die_at
from platform_under_test import ROOT, eventually

pytestmark = pytest.mark.one_by_one


# -- what to do to pass a point -------------------------------------------------------------------------------------------


def create_and_delete(platform):
    Sandbox.create(timeout=600).kill()


sizes = itertools.count(300)


def booted_cold(platform):
    """Of a size that has no base snapshot: what goes on from one is not asked whether it is healthy."""
    answer = platform.api("POST", "/v1/sandboxes?wait=60", {"memory_mib": next(sizes), "timeout_s": 600})
    platform.api("DELETE", f"/v1/sandboxes/{(answer.get('sandbox') or answer)['id']}?wait=60")


def left_alone(seconds, **more):
    def action(platform):
        platform.api("POST", "/v1/sandboxes?wait=60", {"timeout_s": seconds, **more})
    return action


def made(platform) -> str:
    answer = platform.api("POST", "/v1/sandboxes?wait=60", {"timeout_s": 600})
    return (answer.get("sandbox") or answer)["id"]


def change(*steps):
    """Goes through these changes with a new sandbox, and removes it."""
    def action(platform):
        sandbox = made(platform)
        for step in steps:
            platform.api("POST", f"/v1/sandboxes/{sandbox}/{step}?wait=60")
        platform.api("DELETE", f"/v1/sandboxes/{sandbox}?wait=60")
    return action


def snapshot(platform):
    taken = platform.api("POST", f"/v1/sandboxes/{made(platform)}/snapshots?wait=60", {})["snapshot"]["id"]
    platform.api("DELETE", f"/v1/snapshots/{taken}")


def killed_machine(platform):
    """A machine that dies under a running sandbox."""
    before = set(platform.vmm_pids())
    made(platform)
    for pid in set(platform.vmm_pids()) - before:
        os.kill(pid, signal.SIGKILL)


def shut_down(platform):
    """A guest that switches itself off."""
    Sandbox.create(timeout=600).commands.run("echo o > /proc/sysrq-trigger", user="root", background=True)


def suspended_behind_its_back(platform):
    """The worker has suspended it, and nobody wrote that down."""
    sandbox = made(platform)
    epoch = platform.worker(f"/sandboxes/{sandbox}")["epoch"]
    platform.worker(f"/sandboxes/{sandbox}/suspend", {"epoch": epoch})


# The first prefix that fits: the action, and what else to arm. Without an entry a create and a delete pass the point.
WAYS = {
    "controller.create.before_undo": (create_and_delete, "api.create.before_worker kill"),
    "controller.create.before_finish": (create_and_delete, "api.create.after_worker kill"),
    "controller.delete.": (left_alone(2), ""),
    "controller.samples.before_write": (left_alone(60), ""),
    "controller.suspend.before_claim": (left_alone(2, on_timeout="suspend"), ""),
    "controller.move.before_worker": (change("suspend"), "api.move.before_worker kill"),
    "controller.move.before_row": (change("suspend"), "api.move.before_worker kill"),
    "controller.snapshot.before_row": (snapshot, "api.snapshot.after_worker kill"),
    "controller.snapshot.before_remove": (snapshot, "api.snapshot.after_delete kill"),
    "api.create.before_failed": (create_and_delete, "worker.start.admitted fail"),
    "api.move.": (change("suspend"), ""),
    "api.snapshot.": (snapshot, ""),
    "store.snapshot.": (snapshot, ""),
    "worker.snapshot.": (snapshot, ""),
    "worker.start.agent_answered": (booted_cold, ""),
    "worker.pause.": (change("pause"), ""),
    "worker.resume.": (change("pause", "resume"), ""),
    "worker.suspend.": (change("suspend"), ""),
    "worker.end.saved": (change("suspend"), ""),
    "worker.restore.": (change("suspend", "resume"), ""),
    "vmm.save.": (change("suspend"), ""),
    "hostd.vmm.memory_opened": (change("suspend"), ""),
    "sandbox.pause_failed.": (change("pause"), "worker.pause.stopped fail"),
    "sandbox.resume_failed.": (change("pause", "resume"), "worker.resume.noted fail"),
    "sandbox.suspend_failed.": (change("suspend"), "worker.suspend.saved fail"),
    "sandbox.restore_failed.": (change("suspend", "resume"), "worker.restore.restored fail"),
    "controller.align.before_row": (suspended_behind_its_back, ""),
    "sandbox.pause": (change("pause"), ""),
    "sandbox.resume": (change("pause", "resume"), ""),
    "sandbox.suspend": (change("suspend"), ""),
    "sandbox.restore": (change("suspend", "resume"), ""),
    "sandbox.start_failed.": (create_and_delete, "worker.start.admitted fail"),
    "sandbox.machine_failed.": (killed_machine, ""),
    "sandbox.machine_ended.": (shut_down, ""),
}

# What this installation cannot pass, and the test that does.
ELSEWHERE = {
    "hostd.uplink.": "test/integration/uplink_test.cpp",
    "hostd.firecracker.": "test/integration/firecracker_jail_test.cpp",
    "hostd.gateway.": "test/security/test_walk_of_faults.py",
    "worker.gateway.": "test/security/test_walk_of_faults.py",
    # While a base snapshot is made, and when machines wait: not here, where machines are counted.
    "vmm.capture.": "src/worker/ahead_test.cpp",
    "worker.base.exercised": "src/worker/ahead_test.cpp",
    "worker.base.captured": "src/worker/ahead_test.cpp",
    "worker.base.sealed": "src/worker/ahead_test.cpp",
    "worker.warm.": "src/worker/ahead_test.cpp",
    "agent.": "test/system/test_fault_walk.py",  # below, by a file in the guest
}

# Walked by nobody, and why.
NOWHERE = {"vmm.firecracker_": "no Firecracker on hosts of this kind"}


def here(point: str) -> bool:
    return not any(point.startswith(prefix) for prefix in (*ELSEWHERE, *NOWHERE))


def way(point: str):
    return next((how for prefix, how in WAYS.items() if point.startswith(prefix)), (create_and_delete, ""))


def test_every_lifecycle_step_has_a_point_and_every_point_a_walk():
    points = all_points()
    for step in ("api.create.", "api.delete.", "worker.start.", "worker.end.", "hostd.slot.", "hostd.vmm.", "controller.",
                 "sandbox.started.", "sandbox.end.", "sandbox.released."):
        assert any(p.startswith(step) and here(p) for p in points), f"no fault point {step}*"
    for prefix, where in ELSEWHERE.items():
        assert any(p.startswith(prefix) for p in points), f"{prefix} is no point any more"
        assert prefix in (ROOT / where).read_text(), f"{where} does not walk {prefix}"


@pytest.mark.parametrize("prefix", NOWHERE)
def test_walked_by_nobody(prefix):
    pytest.skip(f"{prefix}*: {NOWHERE[prefix]}")


looks = itertools.count()


@pytest.mark.parametrize("point", filter(here, all_points()))
def test_killed_at(platform, point):
    action, beside = way(point)
    # Work of a dead process is taken over when its lease of 15 s is over; and the controller looks every few seconds.
    die_at(platform, point, lambda: action(platform), beside, patience=40 if point.startswith("controller.") else 5)
    if next(looks) % 6:  # not after each: what is no more usable stays so
        return
    probe = Sandbox.create(timeout=600)
    try:
        assert probe.commands.run("echo ok").stdout == "ok\n"
    finally:
        assert probe.kill() is True


# -- inside the guest: PID 1 dies, which is the end of that sandbox alone ---------------------------------------------------

INIT = """
import http.client, json, socket, sys
connection = http.client.HTTPConnection("192.0.2.2", 49983, timeout=20)
connection.sock = socket.socket()
connection.sock.settimeout(10)  # a guest that has died does not even say so
connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 2)  # as hostd's own: the slot lets no other in
connection.sock.connect(("192.0.2.2", 49983))
connection.request("POST", "/init", json.dumps({"init_key": sys.argv[1]}), {"Content-Type": "application/json"})
print(connection.getresponse().status)
"""


def call_init(platform, sandbox) -> str:
    """The worker's call, by hand: what it knows is in its journal."""
    entry = json.loads((platform.data_dir / "worker" / "sandboxes" / f"{sandbox.sandbox_id}.json").read_text())
    namespace = platform.run_dir / "hostd" / "netns" / str(entry["slot"])
    return subprocess.run(["nsenter", f"--net={namespace}", sys.executable, "-c", INIT, entry["init_key"]],
                          capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.parametrize("point", [p for p in all_points() if p.startswith("agent.")])
def test_the_agent_killed_at(platform, neighbour, nothing_left, make, point):
    pass_it = {"agent.command.spawn": lambda sandbox: sandbox.commands.run("true", timeout=20),
               "agent.init.apply": lambda sandbox: call_init(platform, sandbox)}[point]
    sandbox = make()
    # The controls: what the point is in works, and the point's own error comes as one.
    pass_it(sandbox)
    sandbox.files.write("/run/space-faults", f"{point} fail\n", user="root")
    try:
        assert pass_it(sandbox) == "500"
    except Exception as error:  # noqa: BLE001
        assert "fault point" in str(error), error
    assert sandbox.files.read("/run/space-faults", user="root") == ""
    sandbox.files.write("/run/space-faults", f"{point} kill\n", user="root")
    try:
        pass_it(sandbox)
    except Exception:  # noqa: BLE001
        pass

    def ended():
        row = platform.api("GET", f"/v1/sandboxes/{sandbox.sandbox_id}")
        return row if row["state"] in ("failed", "deleted") else None

    assert eventually(ended, 60, "the end of the sandbox")["end_reason"] == "guest_panic"
    assert sandbox.is_running() is False
    assert neighbour.commands.run("echo fine").stdout == "fine\n"
