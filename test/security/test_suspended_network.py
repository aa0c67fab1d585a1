"""A sandbox that was suspended has a new gateway: with an authority of its own, which the guest trusts; what was connected
through the old one has ended."""

import time

import pytest
from platform_under_test import eventually

# Never done with its request; says how that ended.
TALKER = r'''
import socket, time
peer = socket.create_connection(("allowed.example", 80), timeout=20)
peer.settimeout(None)
peer.sendall(b"POST /slow HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 100000\r\n\r\n")
open("/home/user/talks", "w").write("yes")
began = time.monotonic()
try:
    while True:
        peer.sendall(b"x")
        time.sleep(0.2)
except OSError as error:
    open("/home/user/ended", "w").write(type(error).__name__)
'''

# Waits for a word that never comes, and has another connection within the guest.
READER = r'''
import socket
server = socket.create_server(("127.0.0.1", 0))
inner = socket.create_connection(server.getsockname())
other = server.accept()[0]
peer = socket.create_connection(("allowed.example", 80), timeout=20)
peer.settimeout(None)
peer.sendall(b"POST /slow HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 100000\r\n\r\n")
open("/home/user/reads", "w").write("yes")
try:
    said = repr(peer.recv(1))
except OSError as error:
    said = type(error).__name__
inner.sendall(b"within")
late = socket.create_connection(server.getsockname())
open("/home/user/heard", "w").write(f"{said} {other.recv(6).decode()}")
'''


@pytest.fixture
def sandbox(platform):
    made = platform.api("POST", "/v1/sandboxes?wait=170", {
        "timeout_s": 3600, "policy": {"posture": "allowlist", "rules": [{"id": "one", "hosts": ["allowed.example"]}]}},
        timeout=200)["sandbox"]["id"]
    yield made
    platform.api("DELETE", f"/v1/sandboxes/{made}")


def test_after_a_suspend_old_connections_are_reset_and_the_new_authority_is_trusted(platform, sandbox, rig):
    def run(command: str) -> str:
        done = platform.api("POST", f"/v1/sandboxes/{sandbox}/commands?wait=60", {"argv": ["sh", "-c", command]})
        assert done["exit_code"] == 0, done
        return done.get("stdout", "").strip()

    def fetch(path: str) -> None:
        assert "hello from allowed.example" in run(f"curl -sS --max-time 20 https://allowed.example/{path}")

    fetch("before")
    authority = run("cat /etc/ssl/certs/space-gateway.pem")
    assert "BEGIN CERTIFICATE" in authority
    for client in (TALKER, READER):
        platform.api("POST", f"/v1/sandboxes/{sandbox}/commands", {"argv": ["python3", "-c", client]})
    eventually(lambda: run("cat /home/user/talks /home/user/reads || true") == "yesyes", 30, "both are connected")
    assert run("cat /home/user/ended /home/user/heard 2>/dev/null || echo connected") == "connected"
    platform.api("POST", f"/v1/sandboxes/{sandbox}/suspend?wait=60")
    platform.api("POST", f"/v1/sandboxes/{sandbox}/resume?wait=60")
    ended = eventually(lambda: run("cat /home/user/ended || true"), 20, "the old connection has an end")
    assert ended in ("ConnectionResetError", "BrokenPipeError", "ConnectionAbortedError"), ended
    heard = eventually(lambda: run("cat /home/user/heard || true"), 20, "who only reads hears of it, too")
    assert heard == "ConnectionAbortedError within", "and what is connected within the guest stays so"
    fetch("after")
    assert run("cat /etc/ssl/certs/space-gateway.pem") != authority, "no gateway inherits another one's key"
    lines = authority.splitlines()  # one in the middle: the first are the same for all
    assert run(f"grep -cF '{lines[len(lines) // 2]}' /etc/ssl/certs/ca-certificates.crt || true") == "0", "the old one is gone"
    run("! getent hosts neighbour.example")

    # What was decided while it slept holds before its first packet, for the authority that it trusts and for the names it knows.
    platform.api("POST", f"/v1/sandboxes/{sandbox}/suspend?wait=60")
    platform.api("PUT", f"/v1/sandboxes/{sandbox}/policy", {"posture": "allowlist", "rules": []})
    since = time.time()
    platform.api("POST", f"/v1/sandboxes/{sandbox}/resume?wait=60")
    run("! curl -sS --max-time 20 https://allowed.example/late")
    assert not rig.arrived(since, kind="http", path="/late")
