"""Pause, connect, auto-pause, auto-resume and snapshots of the unmodified client. E2B's pause is our suspend."""

import ssl
import time
import urllib.error
import urllib.request
import uuid

import pytest
from e2b import CommandExitException, NotFoundException, Sandbox, SandboxQuery, SandboxState, TimeoutException
from platform_under_test import eventually

# One process that holds a variable, a file that is open, and a server: all of it has to be there afterwards.
SERVER = r"""
import http.server, os, time
secret = os.urandom(8).hex()
log = open('/tmp/log', 'w')
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        log.write('asked\n'); log.flush()
        body = f'{os.getpid()} {secret} {int(time.time())}'.encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(('0.0.0.0', 8000), Handler).serve_forever()
"""


def start_server(sandbox):
    sandbox.files.write("/home/user/server.py", SERVER)
    sandbox.commands.run("python3 /home/user/server.py", background=True, timeout=0)

    def answers():
        try:
            return ask_inside(sandbox)
        except CommandExitException:  # not listening yet
            return None

    return eventually(answers, 60, "the server in the guest answers")


def ask_inside(sandbox):
    done = sandbox.commands.run(
        "python3 -c \"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/').read().decode())\"")
    return done.stdout.split()


def test_what_runs_goes_on_after_pause_and_connect(make):
    mark = uuid.uuid4().hex
    sandbox = make(timeout=300, metadata={"mark": mark})
    pid, secret, _ = start_server(sandbox)
    sandbox.files.write("/home/user/kept.txt", mark)
    token = sandbox.connection_config.access_token if hasattr(sandbox.connection_config, "access_token") else None
    sandbox.pause()
    info = sandbox.get_info()
    assert info.state == SandboxState.PAUSED
    assert not sandbox.is_running()
    query = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])
    assert [one.sandbox_id for one in Sandbox.list(query).next_items()] == [sandbox.sandbox_id]
    query = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.RUNNING])
    assert Sandbox.list(query).next_items() == []
    sandbox.beta_pause()  # 409 is "already paused", which the client takes for success
    slept = time.time()
    time.sleep(2)
    again = sandbox.connect(timeout=120)
    assert again.sandbox_id == sandbox.sandbox_id
    assert sandbox.is_running()
    then = ask_inside(sandbox)
    assert then[:2] == [pid, secret], "the same process with the same memory"
    assert int(then[2]) >= slept + 1, "its clock knows how long it slept"
    assert sandbox.files.read("/home/user/kept.txt") == mark
    assert sandbox.files.read("/tmp/log").count("asked") >= 2, "the open file goes on"
    left = (sandbox.get_info().end_at.timestamp() - time.time())
    assert 60 < left <= 121, "the timeout counts from the connect"
    assert token is None or again.connection_config.access_token == token


def test_a_command_stream_ends_with_a_pause_and_kill_ends_a_paused_one(make):
    sandbox = make(timeout=300)
    handle = sandbox.commands.run("sleep 600", background=True, timeout=0)
    begun = time.monotonic()
    Sandbox.pause(sandbox.sandbox_id)
    assert time.monotonic() - begun < 60
    with pytest.raises(Exception):
        handle.wait()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("true")
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(NotFoundException):
        sandbox.pause()


def test_at_its_timeout_it_pauses_when_that_was_asked_for(make):
    sandbox = make(timeout=300, lifecycle={"on_timeout": "pause", "auto_resume": False})
    info = sandbox.get_info()
    assert info.lifecycle["on_timeout"] == "pause" and info.lifecycle["auto_resume"] is False
    sandbox.files.write("/home/user/kept.txt", "yes")
    sandbox.set_timeout(1)
    eventually(lambda: sandbox.get_info().state == SandboxState.PAUSED, 30, "it is paused by itself")
    assert not sandbox.is_running(), "asking does not wake it"
    assert sandbox.get_info().state == SandboxState.PAUSED
    sandbox.connect(timeout=60)
    assert sandbox.files.read("/home/user/kept.txt") == "yes"


def test_a_request_wakes_it_when_that_was_asked_for(make, platform, mode):
    sandbox = make(timeout=300, lifecycle={"on_timeout": "pause", "auto_resume": True})
    pid, secret, _ = start_server(sandbox)
    sandbox.set_timeout(1)
    eventually(lambda: sandbox.get_info().state == SandboxState.PAUSED, 30, "it is paused by itself")
    if mode == "url":  # no host names there: the agent's port is what remains
        assert sandbox.is_running()
    else:
        context = ssl.create_default_context(cafile=platform.ca_file)
        stranger = urllib.request.Request(f"https://{sandbox.get_host(49983)}/envs")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(stranger, context=context, timeout=60)
        assert refused.value.code in (401, 403)
        assert sandbox.get_info().state == SandboxState.PAUSED, "a stranger without the token does not wake it"
        answer = urllib.request.urlopen(f"https://{sandbox.get_host(8000)}/", context=context, timeout=60)
        assert answer.read().decode().split()[:2] == [pid, secret]
    assert sandbox.get_info().state == SandboxState.RUNNING
    assert ask_inside(sandbox)[:2] == [pid, secret]
    left = sandbox.get_info().end_at.timestamp() - time.time()
    assert left > 200, "traffic gives it at least 300 seconds"


def test_a_sandbox_starts_from_a_snapshot_of_another(make):
    sandbox = make(timeout=300)
    pid, secret, _ = start_server(sandbox)
    snapshot = sandbox.create_snapshot()
    assert ":" in snapshot.snapshot_id
    assert ask_inside(sandbox)[:2] == [pid, secret], "it goes on"
    listed = sandbox.list_snapshots()
    assert [one.snapshot_id for one in listed.next_items()] == [snapshot.snapshot_id]
    copy = make(template=snapshot.snapshot_id, timeout=120)
    assert copy.sandbox_id != sandbox.sandbox_id
    assert ask_inside(copy)[:2] == [pid, secret], "memory is in the copy"
    copy.files.write("/home/user/mine.txt", "copy")
    assert not sandbox.files.exists("/home/user/mine.txt")
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    assert ask_inside(copy)[:2] == [pid, secret], "it does not need the snapshot any more"
