"""Walks every named fault point of the lifecycle: the process dies there, the platform comes back and agrees with itself.

The points come from the sources (SPACE_FAULT("…")), so that a new step is walked by itself; the table below says which
action passes a point. A point that no action reaches fails the test.
"""

import pathlib
import re

import pytest
from e2b import Sandbox
from platform_under_test import ROOT, eventually
from test_kills import agrees

POINT = re.compile(r'SPACE_FAULT\("([a-z0-9_.]+)"\)')


# Points that a plain create and delete never pass: what to arm beside them, and the timeout of a sandbox that is
# left alone (0: create and delete as usual).
OTHER_WAYS = {
    "controller.create.before_undo": ("api.create.before_worker kill", 0),
    "controller.create.before_finish": ("api.create.after_worker kill", 0),
    "controller.delete.before_worker": ("", 2),
    "controller.delete.before_row": ("", 2),
    "api.create.before_failed": ("worker.start.admitted fail", 0),
    "controller.samples.before_write": ("", 60),
}


# Points that this installation cannot pass, and what walks them instead. Shown as skipped, with the reason.
ELSEWHERE = {
    "agent.": "inside the guest, where no fault file is: src/agent tests",
    "hostd.uplink.": "needs an uplink: test/integration/uplink_test.cpp walks them",
    "hostd.firecracker.": "no Firecracker on hosts of this kind: test/integration/firecracker_jail_test.cpp walks it",
    "hostd.gateway.": "needs an uplink: test/integration/hostd_gateway_test.cpp walks them",
    "worker.gateway.": "needs an uplink; pending in docs/spec.md",
    "vmm.firecracker_": "no Firecracker on hosts of this kind; its driver is tried on a fake: src/vmm/firecracker_test.cpp",
    "vmm.capture.": "passed while a base snapshot is made, which was before: src/worker/ahead_test.cpp walks them",
    "worker.base.exercised": "passed while a base snapshot is made, which was before: src/worker/ahead_test.cpp walks it",
    "worker.base.captured": "passed while a base snapshot is made, which was before: src/worker/ahead_test.cpp walks it",
    "worker.base.sealed": "passed while a base snapshot is made, which was before: src/worker/ahead_test.cpp walks it",
    "worker.warm.": "no machine waits in this installation: src/worker/ahead_test.cpp walks them",
}


def all_points():
    points = set()
    for path in pathlib.Path(ROOT / "src").rglob("*.cpp"):
        if not path.name.endswith("_test.cpp"):
            points |= set(POINT.findall(path.read_text()))
    return sorted(points)


def walk():
    for number, point in enumerate(all_points()):
        reason = next((why for prefix, why in ELSEWHERE.items() if point.startswith(prefix)), None)
        marks = [pytest.mark.skip(reason=f"{point}: {reason}")] if reason else []
        yield pytest.param(point, number, marks=marks, id=point)


def test_every_lifecycle_step_has_a_point():
    points = all_points()
    for step in ("api.create.", "api.delete.", "worker.start.", "worker.end.", "hostd.slot.", "hostd.vmm.", "controller."):
        assert any(p.startswith(step) for p in points), f"no fault point {step}*"


@pytest.mark.parametrize("point, number", walk())
def test_killed_at(platform, point, number):
    beside, timeout = OTHER_WAYS.get(point, ("", 0))
    platform.arm(*filter(None, [beside, f"{point} kill"]))

    def fired():
        return platform.armed() == ""

    def pass_it():
        # A program that died at the point before may wait for its restart: then the create is refused, and tried again.
        try:
            sandbox = Sandbox.create(timeout=timeout or 600)
            if not timeout:
                sandbox.kill()
        except Exception:  # the create or the delete may fail: the process died under it
            pass
        # Work of a dead process is taken over when its lease of 15 s is over.
        return eventually(fired, 40 if point in OTHER_WAYS else 5, f"{point} is passed")

    try:
        eventually(pass_it, 90, f"{point} is passed by a create and a delete")
    finally:
        platform.arm()
    eventually(lambda: platform.api("GET", "/v1/sandboxes?limit=100") is not None, 60, "the API answers again")

    def settled():
        for row in platform.api("GET", "/v1/sandboxes?limit=100")["sandboxes"]:
            platform.api("DELETE", f"/v1/sandboxes/{row['id']}?wait=30")
        assert agrees(platform) and not platform.vmm_pids()
        return True

    eventually(settled, 90, f"rows agree with what runs after a death at {point}")
    if number % 6:  # a create costs seconds in emulation, and the next point's walk begins with one
        return
    probe = Sandbox.create(timeout=600)
    try:
        assert probe.commands.run("echo ok").stdout == "ok\n"
    finally:
        assert probe.kill() is True
