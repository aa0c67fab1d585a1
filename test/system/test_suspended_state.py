"""What is inside a sandbox goes through its suspends: a variable, an open file, a server that listens, a command that runs;
what was open to the outside ends; a damaged state is named and kept."""

import json
import socket
import threading
import time

from e2b import CommandExitException, Sandbox
from platform_under_test import ApiError, eventually

SERVER = r'''
import http.server, json, os, time
value = {"asked": 0}
journal = open("/home/user/journal", "a")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        value["asked"] += 1
        journal.write("%d\n" % value["asked"]); journal.flush(); os.fsync(journal.fileno())
        text = json.dumps({"asked": value["asked"], "pid": os.getpid(), "time": time.time()}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(text))); self.end_headers()
        self.wfile.write(text)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
'''

ASK = "python3 -c 'import urllib.request; print(urllib.request.urlopen(\"http://127.0.0.1:8000\", timeout=20).read().decode())'"


def state(platform, sandbox):
    return platform.api("GET", f"/v1/sandboxes/{sandbox.sandbox_id}")["state"]


def change(platform, sandbox, step):
    platform.api("POST", f"/v1/sandboxes/{sandbox.sandbox_id}/{step}?wait=60")
    assert state(platform, sandbox) == {"suspend": "suspended", "resume": "running"}[step]


def ask(sandbox) -> dict:
    before = time.time()
    said = json.loads(sandbox.commands.run(ASK, timeout=60).stdout)
    assert before - 3 < said["time"] < time.time() + 3, "the guest's clock is right"
    return said


def test_three_cycles_keep_every_write_and_the_process_that_makes_them(platform, make, request):
    sandbox = make()
    sandbox.files.write("/home/user/server.py", SERVER)
    stream = sandbox.commands.run("python3 /home/user/server.py", background=True, timeout=0)
    ended = threading.Event()

    def follow():
        try:
            stream.wait()
        except Exception:  # noqa: BLE001 - how a client is told is its business; that it is told is ours
            pass
        ended.set()

    threading.Thread(target=follow, daemon=True).start()

    def asked_first():
        try:
            return ask(sandbox)
        except CommandExitException:  # it does not listen yet
            return None

    first = eventually(asked_first, 30, "the server answers")
    asked = first["asked"]
    for cycle in range(3):
        change(platform, sandbox, "suspend")
        if cycle == 0:
            assert ended.wait(30), "a stream that was open ends, and does not hang"
            time.sleep(90 if request.config.getoption("--long") else 5)  # the clock has something to catch up
        change(platform, sandbox, "resume")
        sandbox = Sandbox.connect(sandbox.sandbox_id)
        said = ask(sandbox)
        asked += 1
        assert (said["asked"], said["pid"]) == (asked, first["pid"])
        assert sandbox.files.read("/home/user/journal").split() == [str(n + 1) for n in range(asked)], \
            "no write of any cycle is lost"
    assert [p for p in sandbox.commands.list() if p.pid == first["pid"] or "server.py" in " ".join(p.args)], \
        "the agent still has the command"


def test_a_damaged_state_is_refused_by_name_and_the_sandbox_kept(platform, make):
    sandbox = make()
    sandbox.files.write("/home/user/mark", "kept")
    change(platform, sandbox, "suspend")
    pages = platform.data_dir / "pool" / "suspended" / sandbox.sandbox_id / "pages"
    good = pages.read_bytes()
    middle = len(good) // 2
    pages.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1:])
    try:
        change(platform, sandbox, "resume")
        raise AssertionError("a damaged state was resumed")
    except ApiError as error:
        assert "damaged" in str(error), error
    row = platform.api("GET", f"/v1/sandboxes/{sandbox.sandbox_id}")
    assert row["state"] == "suspended" and "damaged" in row.get("problem", ""), row
    pages.write_bytes(good)
    sandbox = Sandbox.connect(sandbox.sandbox_id)
    assert sandbox.files.read("/home/user/mark") == "kept"


HOLDER = r'''
import socket, threading, time
listener = socket.create_server(("0.0.0.0", 8001))
def note(text):
    with open("/home/user/ends", "a") as file:
        file.write(text + "\n")
def hold(peer, speaks):
    got = 0
    try:
        while True:
            if speaks:
                time.sleep(0.5)
                peer.sendall(b"x")
                continue
            data = peer.recv(4096)
            if not data:
                return note("silent closed")
            got += len(data)
            note("silent got")
    except OSError as error:
        note(("speaks " if speaks else "silent ") + type(error).__name__)
for speaks in (False, True):
    peer, _ = listener.accept()
    note("accepted")
    threading.Thread(target=hold, args=(peer, speaks)).start()
'''


def lines(sandbox, path):
    return sandbox.files.read(path).split("\n") if sandbox.files.exists(path) else []


def test_connections_of_the_life_before_end_on_both_sides(platform, make):
    sandbox = make()
    sandbox.files.write("/home/user/holder.py", HOLDER)
    sandbox.commands.run("python3 /home/user/holder.py", background=True, timeout=0)
    sandbox.commands.run("until grep -q :1F41 /proc/net/tcp; do sleep 0.1; done", timeout=60)
    outside = []
    for count in (1, 2):
        peer = socket.create_connection(("127.0.0.1", platform.http_port), timeout=60)
        peer.sendall(f"POST / HTTP/1.1\r\nHost: 8001-{sandbox.sandbox_id}.{platform.domain}\r\n"
                     "Content-Length: 100\r\n\r\nbegun".encode())
        outside.append(peer)
        eventually(lambda: lines(sandbox, "/home/user/ends").count("accepted") == count, 30, "it is accepted")
    change(platform, sandbox, "suspend")
    for peer in outside:
        peer.settimeout(20)
        while peer.recv(4096):  # an answer that says so, or nothing; but an end
            pass
        peer.close()
    change(platform, sandbox, "resume")
    sandbox = Sandbox.connect(sandbox.sandbox_id)

    def ended():
        said = lines(sandbox, "/home/user/ends")
        return [one for one in said if one.startswith("speaks ")] and \
            [one for one in said if one.startswith("silent ") and one != "silent got"] and said

    eventually(ended, 60, "both connections in the guest have an end")
