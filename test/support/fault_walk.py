"""Walks named fault points of the lifecycle: the process dies there, the platform comes back and agrees with itself.

The points come from the sources (SPACE_FAULT("…") and the table of states), so that a new step is walked by itself. A test
module says which action passes a point; a point that no action passes fails its test.
"""

from __future__ import annotations

import pathlib
import re

from platform_under_test import ROOT, Platform, eventually

POINT = re.compile(r'SPACE_FAULT\("([a-z0-9_.]+)"\)')
# Two points for each event of the table of states (src/domain/sandbox_state.cpp), armed as the rows are changed.
ROW = re.compile(r"SPACE_ROW\([a-z]+, ([a-z_]+), [a-z]+\)")


def all_points() -> list[str]:
    points = set()
    for path in pathlib.Path(ROOT / "src").rglob("*.cpp"):
        if not path.name.endswith("_test.cpp"):
            text = path.read_text()
            points |= set(POINT.findall(text))
            for event in set(ROW.findall(text)) - {"event"}:  # the macro's own parameter
                points |= {f"sandbox.{event}.before_commit", f"sandbox.{event}.after_commit"}
    return sorted(points)


def agrees(platform: Platform) -> bool:
    """Rows, the worker's machines and the host's processes tell the same story."""
    holdings = platform.holdings()
    rows = {s["id"]: s for s in platform.api("GET", "/v1/sandboxes?limit=100")["sandboxes"]}
    assert all(s["state"] == "running" for s in rows.values()), rows
    assert holdings["disks"] == set(rows), (holdings["disks"], set(rows))
    assert len(holdings["machines"]) >= len(rows)
    return True


def die_at(platform: Platform, point: str, action, beside: str = "", patience: float = 5) -> None:
    """Arms the point and repeats the action until the point was passed; then everything has to come back and agree.
    The action may fail: the process dies under it."""
    platform.arm(*filter(None, [beside, f"{point} kill"]))

    def pass_it():
        # A program that died at the point before may wait for its restart: then the action is refused, and tried again.
        try:
            action()
        except Exception:  # noqa: BLE001
            pass
        return eventually(lambda: platform.armed() == "", patience, f"{point} is passed")

    try:
        eventually(pass_it, 90, f"{point} is passed by its action")
    finally:
        platform.arm()
    eventually(lambda: platform.api("GET", "/v1/sandboxes?limit=100") is not None, 60, "the API answers again")
    # Whoever died last waits longer for its restart than a request waits for it.
    eventually(platform.all_run, 60, "every program runs again")

    def settled():
        for snapshot in platform.api("GET", "/v1/snapshots")["snapshots"]:
            platform.api("DELETE", f"/v1/snapshots/{snapshot['id']}")
        for row in platform.api("GET", "/v1/sandboxes?limit=100")["sandboxes"]:
            platform.api("DELETE", f"/v1/sandboxes/{row['id']}?wait=30")
        assert agrees(platform) and not platform.vmm_pids()
        return True

    eventually(settled, 90, f"rows agree with what runs after a death at {point}")
