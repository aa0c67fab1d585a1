"""The fault points of gateways, which only an installation with an uplink passes (see system/test_fault_walk.py)."""

import time

import pytest
from e2b import Sandbox
from fault_walk import all_points, die_at
from platform_under_test import eventually

MINE = [p for p in all_points() if p.startswith(("hostd.gateway.", "worker.gateway."))]
POLICY = {"posture": "allowlist", "rules": [{"id": "first", "hosts": ["allowed.example"]}]}


def create(platform) -> str:
    made = platform.api("POST", "/v1/sandboxes?wait=60", {"timeout_s": 600, "policy": POLICY})
    return (made.get("sandbox") or made)["id"]


def test_there_are_points():
    assert [p for p in MINE if p.startswith("hostd.gateway.")] and [p for p in MINE if p.startswith("worker.gateway.")]


@pytest.mark.parametrize("point", MINE)
def test_killed_at(platform, rig, point):
    def action():
        platform.api("DELETE", f"/v1/sandboxes/{create(platform)}?wait=60")

    die_at(platform, point, action)
    # Afterwards a sandbox has its network, and no more than its policy says.
    sandbox = create(platform)
    since = time.time()
    try:
        client = Sandbox.connect(sandbox, api_key=platform.key, api_url=platform.http_url, sandbox_url=platform.http_url)
        said = eventually(lambda: client.commands.run(
            "curl -sS --max-time 20 https://allowed.example/walked; curl -sS --max-time 20 https://neighbour.example/walked "
            "2>/dev/null || echo refused", timeout=60).stdout, 60, "the allowed name is reached")
        assert "hello from allowed.example" in said and said.endswith("refused\n"), said
        assert rig.arrived(since, kind="http", host="allowed.example", path="/walked")
    finally:
        platform.api("DELETE", f"/v1/sandboxes/{sandbox}?wait=60")
