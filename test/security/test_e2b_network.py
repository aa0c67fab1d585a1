"""E2B's words about outgoing traffic, said by its unmodified client, and what a guest then reaches."""

import time

import pytest
from e2b import CommandExitException, Sandbox


def sandbox(platform, **options) -> Sandbox:
    return Sandbox.create(api_key=platform.key, api_url=platform.http_url, sandbox_url=platform.http_url, timeout=600, **options)


def status(box: Sandbox, url: str, *words: str) -> str:
    """000 when there was no answer at all."""
    try:
        done = box.commands.run(f"curl -sS --max-time 20 -o /tmp/body -w '%{{http_code}}' {' '.join(words)} {url}", timeout=60)
    except CommandExitException as failed:
        done = failed
    return done.stdout.strip()[:3]


@pytest.fixture(scope="module")
def box(platform):
    made = sandbox(platform, network={"allow_out": ["allowed.example"], "deny_out": ["0.0.0.0/0"]})
    yield made
    made.kill()


def put(platform, box: Sandbox, body: dict) -> None:
    platform.api("PUT", f"/sandboxes/{box.sandbox_id}/network", body)


def test_allowed_names_are_reached_and_the_rest_is_not(platform, box, rig):
    since = time.time()
    assert status(box, "https://allowed.example/e2b") == "200"
    assert status(box, "https://neighbour.example/e2b") == "000"
    # The client's own resolver allowance, 8.8.8.8, is not copied.
    assert status(box, "http://8.8.8.8/") == "000"
    assert rig.arrived(since, kind="http", host="allowed.example", path="/e2b")
    assert not rig.arrived(since, kind="http", host="neighbour.example")
    assert not [one for one in rig.arrived(since, kind="dns") if "neighbour" in one["name"]]


def test_the_put_replaces_everything_at_once(platform, box, rig):
    since = time.time()
    put(platform, box, {"allowOut": ["neighbour.example"], "denyOut": ["0.0.0.0/0"]})
    assert status(box, "https://neighbour.example/put") == "200"
    assert status(box, "https://allowed.example/put") == "000"
    put(platform, box, {})
    assert status(box, "https://allowed.example/open") == "200", "nothing said: the internet is open"
    assert rig.arrived(since, kind="http", host="neighbour.example", path="/put")
    assert not rig.arrived(since, kind="http", host="allowed.example", path="/put")
    put(platform, box, {"allow_internet_access": False})
    assert status(box, "https://allowed.example/closed") == "000"
    assert not rig.arrived(since, kind="http", path="/closed")
    put(platform, box, {"allowOut": ["allowed.example"], "denyOut": ["0.0.0.0/0"]})


def test_a_level_above_narrows_what_these_clients_ask_for(platform, box, rig):
    level = {"posture": "open", "rules": [{"id": "not-here", "hosts": ["allowed.example"], "action": "deny"}]}
    project = platform.api("GET", "/v1/me")["project"]
    assert status(box, "https://allowed.example/before") == "200"
    platform.api("PUT", f"/v1/policies/project/{project}", level)
    try:
        assert status(box, "https://allowed.example/narrowed") == "000"
        assert not rig.arrived(0.0, kind="http", path="/narrowed")
    finally:
        platform.api("DELETE", f"/v1/policies/project/{project}")
    assert status(box, "https://allowed.example/after") == "200"


def test_headers_are_set_on_the_way_out_and_the_guest_never_sees_them(platform, box, rig):
    since = time.time()
    value = "rules-" + "canary-3f9c21"
    rules = {"allowed.example": [{"transform": {"headers": {"x-tenant-key": value, "User-Agent": "from-the-gateway"}}}]}
    put(platform, box, {"allowOut": ["allowed.example", "neighbour.example"], "denyOut": ["0.0.0.0/0"], "rules": rules})
    assert status(box, "https://allowed.example/rules", "-H 'x-tenant-key: of-the-guest'") == "200"
    [seen] = rig.arrived(since, kind="http", host="allowed.example", path="/rules")
    headers = seen["headers"]
    assert headers["x-tenant-key"] == value and headers["user-agent"] == "from-the-gateway"
    # The control: another host that is allowed gets what the guest sends, and nothing of ours.
    assert status(box, "https://neighbour.example/rules", "-H 'x-tenant-key: of-the-guest'") == "200"
    [other] = rig.arrived(since, kind="http", host="neighbour.example", path="/rules")
    assert other["headers"]["x-tenant-key"] == "of-the-guest"
    # In clear text nothing is set.
    assert status(box, "http://allowed.example/plain") == "200"
    [plain] = rig.arrived(since, kind="http", host="allowed.example", path="/plain")
    assert value not in str(plain["headers"])
    shown = platform.api("GET", f"/sandboxes/{box.sandbox_id}")
    assert shown["network"]["rules"]["allowed.example"][0]["transform"]["headers"]["x-tenant-key"] == ""
    assert box.commands.run(f"env | grep -c {value[-6:]} || true").stdout.strip() == "0"
    put(platform, box, {"allowOut": ["allowed.example"], "denyOut": ["0.0.0.0/0"]})
    assert status(box, "https://allowed.example/after-rules") == "200"
    [after] = rig.arrived(since, kind="http", host="allowed.example", path="/after-rules")
    assert value not in str(after["headers"])
