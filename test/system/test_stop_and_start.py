"""What a person keeps when the platform is stopped, and what a power cut leaves."""

import os
import signal
import time

import pytest
from platform_under_test import Platform, eventually
from fault_walk import agrees

SERVER = (
    "import http.server,os\n"
    "variable=os.urandom(8).hex()\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    " def do_GET(s):\n"
    "  b=f'{os.getpid()} {variable}'.encode()\n"
    "  s.send_response(200); s.send_header('Content-Length',str(len(b))); s.end_headers(); s.wfile.write(b)\n"
    "http.server.HTTPServer(('127.0.0.1',8000),H).serve_forever()\n"
)
ASK = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/').read().decode())"


@pytest.fixture(scope="module")
def own():
    """An installation of its own: it is stopped and killed here."""
    platform = Platform()
    try:
        yield platform.start()
    finally:
        platform.destroy()


def run(platform, sandbox, *argv):
    command = platform.api("POST", f"/v1/sandboxes/{sandbox}/commands?wait=60", {"argv": list(argv)})
    assert command["exit_code"] == 0, command
    return command["stdout"].strip()


def state_of(platform, sandbox):
    return platform.api("GET", f"/v1/sandboxes/{sandbox}")["state"]


def with_server(platform):
    made = platform.api("POST", "/v1/sandboxes?wait=120", {"timeout_s": 3600})["sandbox"]["id"]
    platform.api("POST", f"/v1/sandboxes/{made}/commands", {"argv": ["python3", "-c", SERVER]})

    def answers():
        try:
            return run(platform, made, "python3", "-c", ASK)
        except AssertionError:  # not listening yet
            return ""

    return made, eventually(answers, 60, "the server in the guest answers")


def test_a_process_survives_suspend_down_up_and_resume(own):
    sandbox, before = with_server(own)
    other = own.api("POST", "/v1/sandboxes?wait=120", {"timeout_s": 3600})["sandbox"]["id"]
    own.api("POST", f"/v1/sandboxes/{sandbox}/suspend?wait=120")
    assert own.api("GET", f"/v1/sandboxes/{sandbox}")["suspended_bytes"] > 0
    said = own.space("down", timeout=280).stderr
    assert "1 sandbox is suspended" in said, said
    assert not own.vmm_pids()
    own.up()
    for one in (sandbox, other):
        assert state_of(own, one) == "suspended"
    own.api("POST", f"/v1/sandboxes/{sandbox}/resume?wait=120")
    assert run(own, sandbox, "python3", "-c", ASK) == before, "the same process with the same variable"
    assert run(own, other, "echo", "awake") == "awake", "a command wakes what the stop had put to sleep"
    assert abs(int(run(own, sandbox, "date", "+%s")) - time.time()) < 5
    eventually(lambda: agrees(own), 60, "rows agree with what runs")


def test_after_a_power_cut_suspended_ones_are_whole_and_running_ones_are_reported_lost(own):
    asleep, before = with_server(own)
    own.api("POST", f"/v1/sandboxes/{asleep}/suspend?wait=120")
    awake = own.api("POST", "/v1/sandboxes?wait=120", {"timeout_s": 3600})["sandbox"]["id"]
    for _ in range(3):  # children that a parent starts between two looks
        for pid in own.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    own.up()
    eventually(lambda: state_of(own, awake) == "failed", 120, "the one that ran is reported")
    lost = own.api("GET", f"/v1/sandboxes/{awake}")
    assert lost["end_reason"] == "host_lost" and "power cut" in lost["end_detail"], lost
    assert state_of(own, asleep) == "suspended"
    assert run(own, asleep, "python3", "-c", ASK) == before
    eventually(lambda: agrees(own), 60, "rows agree with what runs")


def test_draining_suspends_all_and_takes_no_new_ones(own):
    made = own.api("POST", "/v1/sandboxes?wait=120", {"timeout_s": 3600})["sandbox"]["id"]
    node = own.api("GET", "/v1/nodes")["nodes"][0]["name"]
    own.space("node", "drain", node)
    assert state_of(own, made) == "suspended"
    refused = own.space("sandbox", "create", check=False)
    assert refused.returncode != 0 and "space node drain NODE --off" in refused.stderr
    assert "draining" in own.space("node", "list").stdout
    own.space("node", "drain", node, "--off")
    own.space("sandbox", "resume", made)
    assert run(own, made, "echo", "back") == "back"
