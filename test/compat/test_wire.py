"""The protocol below the client, on real machines: what other clients and newer versions rely on and the pinned one never
sends. Requests go through the client's own connection, so that both ways to the server are covered."""

import base64
import datetime
import gzip
import json
import struct
import time
import uuid

import pytest
from platform_under_test import eventually


def envelopes(body: bytes) -> list[tuple[int, dict]]:
    found = []
    while body:
        flags, size = struct.unpack(">BI", body[:5])
        found.append((flags, json.loads(body[5:5 + size])))
        body = body[5 + size:]
    return found


def unary(sandbox, method: str, message: object, **headers):
    text = message if isinstance(message, (bytes, str)) else json.dumps(message)
    return sandbox._envd_api.post("/" + method, content=text, headers={"Content-Type": "application/json", **headers})


def stream(sandbox, method: str, message: dict, timeout_ms: int = 20_000, **headers):
    """All frames of a stream: the messages, and the payload of the end-of-stream frame."""
    text = json.dumps(message).encode()
    answer = sandbox._envd_api.post(
        "/" + method, content=struct.pack(">BI", 0, len(text)) + text, timeout=60,
        headers={"Content-Type": "application/connect+json", "Connect-Timeout-Ms": str(timeout_ms), **headers})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/connect+json" and "content-encoding" not in answer.headers
    frames = envelopes(answer.content)
    assert [flags for flags, _ in frames] == [0] * (len(frames) - 1) + [2], frames
    return [message for _, message in frames[:-1]], frames[-1][1]


def start(sandbox, command: str, **more):
    headers = more.pop("headers", {})
    timeout_ms = more.pop("timeout_ms", 20_000)
    events, end = stream(sandbox, "process.Process/Start", {
        "process": {"cmd": "/bin/sh", "args": ["-c", command]}, **more}, timeout_ms, **headers)
    return [event["event"] for event in events], end


def output(events, kind="stdout") -> bytes:
    return b"".join(base64.b64decode(e["data"][kind]) for e in events if kind in e.get("data", {}))


def test_frames_of_a_command_in_their_order_and_form(shared):
    events, end = start(shared, "printf out; printf err >&2; exit 3")
    assert set(events[0]) == {"start"} and events[0]["start"]["pid"] > 1
    assert output(events) == b"out" and output(events, "stderr") == b"err"
    assert events[-1] == {"end": {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}}
    assert end == {}
    events, end = start(shared, "true")
    last = events[-1]["end"]
    assert last.pop("exitCode", 0) == 0 and last == {"exited": True, "status": "exit status 0"} and end == {}
    events, _ = start(shared, "kill -9 $$")
    last = events[-1]["end"]
    assert (last["exitCode"], last["status"], last["error"]) == (-1, "signal: killed", "signal: killed")
    assert not last.get("exited", False)
    # Raw bytes, in pieces that the client's buffers are made for.
    events, _ = start(shared, "head -c 200000 /dev/urandom | tee /tmp/raw")
    assert len(output(events)) == 200_000
    assert max(len(base64.b64decode(e["data"]["stdout"])) for e in events if "data" in e) <= 32 * 1024
    assert output(events) == bytes(shared.files.read("/tmp/raw", format="bytes"))


def test_silence_is_filled_with_keepalives_and_data_starts_the_count_anew(shared):
    # The client asks for 50 s; the interval is the header's, so that 2 s tell the same.
    events, end = start(shared, "sleep 3.5; echo one; sleep 1; echo two; sleep 3.5",
                        headers={"Keepalive-Ping-Interval": "2"})
    kinds = ["keepalive" if "keepalive" in e else output([e]).decode().strip() for e in events[1:-1]]
    assert kinds == ["keepalive", "one", "two", "keepalive"], events
    assert end == {}
    made = unary(shared, "filesystem.Filesystem/MakeDir", {"path": f"/tmp/quiet-{uuid.uuid4().hex}"}).json()["entry"]["path"]
    watched, _ = stream(shared, "filesystem.Filesystem/WatchDir", {"path": made}, 3000, **{"Keepalive-Ping-Interval": "1"})
    assert watched[0] == {"start": {}} and watched[1:3] == [{"keepalive": {}}] * 2, watched


def test_deadlines_end_the_command_or_only_the_reader(shared):
    began = time.monotonic()
    events, end = start(shared, "echo begun; sleep 60", timeout_ms=1500)
    assert 1 < time.monotonic() - began < 20
    assert end == {"error": {"code": "deadline_exceeded", "message": "context deadline exceeded"}}
    pid = events[0]["start"]["pid"]
    # The frame is punctual and waits for nobody: the process is gone a moment later.
    kill = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
    eventually(lambda: unary(shared, "process.Process/SendSignal", kill).status_code == 404, 5, "the process is gone")
    tag = uuid.uuid4().hex
    handle = shared.commands.run(f"sleep 5; echo {tag}", background=True)
    events, end = stream(shared, "process.Process/Connect", {"process": {"pid": handle.pid}}, 1000)
    assert events[0] == {"event": {"start": {"pid": handle.pid}}} and end["error"]["code"] == "deadline_exceeded"
    assert handle.wait().stdout == f"{tag}\n"
    # Ended commands can be asked for a while: start and end.
    events, end = stream(shared, "process.Process/Connect", {"process": {"pid": handle.pid}})
    assert [next(iter(e["event"])) for e in events if "data" not in e["event"]] == ["start", "end"] and end == {}


def test_tags_streams_of_input_and_signals(shared):
    tag = f"tag-{uuid.uuid4().hex[:8]}"
    handle = shared.commands.run("exec cat", background=True, stdin=True)
    assert unary(shared, "process.Process/SendInput", {
        "process": {"pid": handle.pid}, "input": {"pty": base64.b64encode(b"x").decode()}}).status_code == 400
    assert unary(shared, "process.Process/CloseStdin", {"process": {"pid": handle.pid}}).json() == {}
    assert handle.wait().exit_code == 0
    # A tag selects, stdin that is not mentioned is open, snake_case and numbers as text are understood.
    with shared._envd_api.stream("POST", "/process.Process/Start", headers={"Content-Type": "application/connect+json"},
                                 content=_enveloped({"process": {"cmd": "cat"}, "tag": tag}), timeout=60) as answer:
        pieces = answer.iter_raw()
        body = next(pieces)
        listed = unary(shared, "process.Process/List", "{ \n }").json()["processes"]
        assert [p["config"]["cmd"] for p in listed if p.get("tag") == tag] == ["cat"]
        sent = unary(shared, "process.Process/SendInput", {
            "process": {"tag": tag}, "input": {"stdin": base64.b64encode(b"by tag\n").decode().rstrip("=")}, "unknown": 1})
        assert (sent.status_code, sent.json()) == (200, {})
        while b"stdout" not in body:  # before it is told to end
            body += next(pieces)
        assert unary(shared, "process.Process/SendSignal", {"process": {"tag": tag}, "signal": "SIGNAL_SIGTERM"}).json() == {}
        body += b"".join(pieces)
    events = [m["event"] for _, m in envelopes(body)[:-1]]
    assert output(events) == b"by tag\n"
    assert events[-1]["end"]["status"] == "signal: terminated" and events[-1]["end"]["exitCode"] == -1


def _enveloped(message: dict) -> bytes:
    text = json.dumps(message).encode()
    return struct.pack(">BI", 0, len(text)) + text


def test_failures_have_the_form_of_their_kind_of_call(shared):
    # Unary: the HTTP status and a body; streams: 200 and an end-of-stream frame.
    for method, message, status, code in (
            ("filesystem.Filesystem/Stat", {"path": "/no/such"}, 404, "not_found"),
            ("filesystem.Filesystem/MakeDir", {"path": "/etc"}, 409, "already_exists"),
            ("filesystem.Filesystem/MakeDir", {"path": "/etc/passwd"}, 400, "invalid_argument"),
            ("filesystem.Filesystem/ListDir", {"path": "/etc/passwd"}, 400, "invalid_argument"),
            ("filesystem.Filesystem/ListDir", {"path": "~other/x"}, 400, "invalid_argument"),
            ("filesystem.Filesystem/GetWatcherEvents", {"watcherId": "wnone"}, 404, "not_found"),
            ("filesystem.Filesystem/RemoveWatcher", {"watcher_id": "wnone"}, 404, "not_found"),
            ("process.Process/SendSignal", {"process": {"pid": 999999}, "signal": "SIGNAL_SIGKILL"}, 404, "not_found"),
            ("process.Process/Update", {"process": {"pid": 999999}, "pty": {"size": {"cols": 1, "rows": 1}}}, 404, "not_found"),
            ("filesystem.Filesystem/Stat", "{broken", 400, "invalid_argument")):
        answer = unary(shared, method, message)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (method, answer.text)
        assert answer.json()["message"]
    # A missing path is gone already, which is what was asked for.
    gone = unary(shared, "filesystem.Filesystem/Remove", {"path": "/no/such"})
    assert (gone.status_code, gone.json()) == (200, {})
    assert unary(shared, "process.Process/NoSuchMethod", {}).status_code in (404, 501)
    nobody = "Basic " + base64.b64encode(b"no-such-user:").decode()
    answer = unary(shared, "filesystem.Filesystem/Stat", {"path": "/"}, Authorization=nobody)
    assert answer.status_code == 401 and "invalid username: 'no-such-user'" in answer.json()["message"]
    for message, headers, code in (
            ({"process": {"cmd": "true", "cwd": "/no/such"}}, {}, "invalid_argument"),
            ({"process": {"cmd": "/no/such/program"}}, {}, ("invalid_argument", "not_found")),
            ({"process": {"cmd": "true"}}, {"Authorization": nobody}, "unauthenticated")):
        events, end = stream(shared, "process.Process/Start", message, **headers)
        assert events == [] and end["error"]["code"] in code and end["error"]["message"], end
    events, end = stream(shared, "filesystem.Filesystem/WatchDir", {"path": "/etc/passwd"})
    assert events == [] and end["error"]["code"] == "invalid_argument"


def test_downloads_encodings_ranges_and_their_refusals(shared):
    path = f"/home/user/d-{uuid.uuid4().hex[:6]} a+b.txt"
    text = "line of text\n" * 5000
    shared.files.write(path, text)
    get = lambda **headers: shared._envd_api.get("/files", params={"path": path, "username": "user"}, headers=headers)
    plain = get(**{"Accept-Encoding": "identity"})
    assert plain.content == text.encode() and "content-encoding" not in plain.headers
    assert plain.headers["content-type"].startswith("text/plain; charset=utf-8") and plain.headers["accept-ranges"] == "bytes"
    assert plain.headers["content-disposition"].startswith("inline") and "accept-encoding" in plain.headers["vary"].lower()
    assert int(plain.headers["content-length"]) == len(text)
    packed = get(**{"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip" and packed.text == text
    assert get(**{"Accept-Encoding": "br;q=1, identity;q=0"}).status_code == 406
    part = get(**{"Accept-Encoding": "identity", "Range": "bytes=5-6"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"of", f"bytes 5-6/{len(text)}")
    assert get(**{"Accept-Encoding": "identity", "Range": "bytes=-5"}).content == text.encode()[-5:]
    assert get(Range=f"bytes={len(text)}-").status_code == 416
    for params, status, said in (({"path": "/no/such"}, 404, "path '/no/such' does not exist"),
                                 ({"path": "/etc"}, 400, "path '/etc' is a directory"),
                                 ({"path": "/etc/passwd", "username": "no-such-user"}, 401, "no-such-user"),
                                 ({"path": "~other/x"}, 400, "")):
        answer = shared._envd_api.get("/files", params=params)
        assert answer.status_code == status and answer.json()["code"] == status and said in answer.json()["message"], answer.text


def test_uploads_metadata_modes_chunks_and_names(shared):
    folder = f"/home/user/u-{uuid.uuid4().hex[:6]}"
    post = lambda name, body, **headers: shared._envd_api.post(
        "/files", params={"path": f"{folder}/{name}"}, content=body, headers={"Content-Type": "application/octet-stream", **headers})
    answer = post("m.txt", b"x", **{"X-Metadata-Origin": "test run", "X-Metadata-n": "7"})
    assert answer.json() == [{"name": "m.txt", "type": "file", "path": f"{folder}/m.txt",
                              "metadata": {"origin": "test run", "n": "7"}}], answer.text
    entry = unary(shared, "filesystem.Filesystem/Stat", {"path": f"{folder}/m.txt"}).json()["entry"]
    assert entry["metadata"] == {"origin": "test run", "n": "7"} and entry["type"] == "FILE_TYPE_FILE" and entry["size"] in ("1", 1)
    assert post("m.txt", b"x", **{"X-Metadata-Bad": "ä".encode()}).status_code == 400
    # An iterator goes out chunked, as other clients send every body.
    assert post("c.txt", iter([b"one ", b"two"])).status_code == 200
    assert shared.files.read(f"{folder}/c.txt") == "one two"
    assert post("g.txt", b"no gzip", **{"Content-Encoding": "gzip"}).status_code == 400
    # An existing file keeps its mode and changes hands; a directory is refused.
    shared.commands.run(f"install -m 600 -o root /dev/null {folder}/kept", user="root")
    shared.files.write(f"{folder}/kept", "new")
    assert shared.commands.run(f"stat -c '%U %a' {folder}/kept").stdout == "user 600\n"
    assert post(".", b"x").status_code == 400
    # Every part of a form is named "file"; the whole path is its file name.
    form = shared._envd_api.post("/files", files=[("file", (f"{folder}/sub/p1", b"1")), ("file", (f"{folder}/sub/p%222", b"2"))])
    assert [set(one) for one in form.json()] == [{"name", "type", "path"}] * 2, form.text
    assert [one["path"] for one in form.json()] == [f"{folder}/sub/p1", f'{folder}/sub/p"2']


def test_moves_links_and_watchers_of_the_newest_form(shared):
    folder = f"/home/user/w-{uuid.uuid4().hex[:6]}"
    shared.commands.run(f"mkdir -p {folder}/real && cd {folder} && echo x > real/f && ln -s real link && ln -s nowhere dangling "
                        "&& touch b && mkdir /dev/shm/away-$$ && echo y > /dev/shm/away && true")
    listed = unary(shared, "filesystem.Filesystem/ListDir", {"path": folder, "depth": 3}).json()["entries"]
    assert [e["path"][len(folder) + 1:] for e in listed] == ["b", "dangling", "link", "real", "real/f"], "links are not descended"
    links = {e["name"]: e for e in listed}
    assert links["link"]["type"] == "FILE_TYPE_DIRECTORY" and links["link"]["symlinkTarget"] == f"{folder}/real"
    assert links["link"]["permissions"] == "Lrwxrwxrwx"
    assert links["dangling"].get("type", "FILE_TYPE_UNSPECIFIED") == "FILE_TYPE_UNSPECIFIED"
    # Over what is there, into parents that are not, from another file system.
    moved = unary(shared, "filesystem.Filesystem/Move", {"source": "/dev/shm/away", "destination": f"{folder}/b"})
    assert moved.json()["entry"]["path"] == f"{folder}/b" and shared.files.read(f"{folder}/b") == "y\n"
    watcher = unary(shared, "filesystem.Filesystem/CreateWatcher",
                    {"path": folder, "recursive": True, "includeEntry": True}).json()["watcherId"]
    shared.files.write(f"{folder}/real/new", "x")
    shared.files.rename(f"{folder}/real/new", f"{folder}/real/newer")
    events = unary(shared, "filesystem.Filesystem/GetWatcherEvents", {"watcherId": watcher}).json()["events"]
    kinds = [(e["name"], e["type"]) for e in events]
    for kind in ("CREATE", "CHMOD", "WRITE", "RENAME"):
        assert ("real/new", f"EVENT_TYPE_{kind}") in kinds, kinds
    assert ("real/newer", "EVENT_TYPE_CREATE") in kinds
    assert [e for e in events if e.get("entry", {}).get("path") == f"{folder}/real/newer"], events
    assert unary(shared, "filesystem.Filesystem/GetWatcherEvents", {"watcherId": watcher}).json().get("events", []) == []
    assert unary(shared, "filesystem.Filesystem/RemoveWatcher", {"watcherId": watcher}).json() == {}


def test_health_environment_and_what_is_for_the_host_alone(shared):
    client = shared._envd_api
    health = client.get("/health")
    assert (health.status_code, health.content) == (204, b"")
    assert client.get("/envs").json()["E2B_SANDBOX_ID"] == shared.sandbox_id
    metrics = client.get("/metrics").json()
    for name in ("ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "disk_used", "disk_total"):
        assert name in metrics, metrics
    for path in ("/init", "/freeze", "/fsfreeze", "/upgrade"):
        answer = client.post(path, json={"init_key": "0" * 64})
        assert answer.status_code == 404 and answer.json()["code"] == 404 and answer.json()["path"] == path, answer.text
    assert abs(metrics["ts"] - time.time()) < 30
    identity = shared.commands.run("id -u; id -gn; tput -T xterm cols; command -v python python3 curl git sudo bash kill cat").stdout
    assert identity.split()[:2] == ["1000", "user"] and len(identity.split()) == 11, identity


def test_the_control_api_as_newer_clients_use_it(platform):
    """No client has both ways here: these are plain requests, so once is enough."""
    import httpx
    client = httpx.Client(base_url=platform.http_url, headers={"X-API-KEY": platform.key}, timeout=60)
    try:
        # Without `secure` and `timeout`, in a chunked body, twice with the same key.
        once = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/json"}
        made = [client.post("/v2/sandboxes", content=iter([b'{"templateID":', b'"base"}']), headers=once) for _ in range(2)]
        assert [one.status_code for one in made] == [201, 201], made[0].text
        sandbox = made[0].json()
        assert made[1].json()["sandboxID"] == sandbox["sandboxID"]
        path = f"/sandboxes/{sandbox['sandboxID']}"
        detail = client.get(path).json()
        begun, ends = (datetime.datetime.fromisoformat(detail[one].replace("Z", "+00:00")) for one in ("startedAt", "endAt"))
        assert 290 < (ends - begun).total_seconds() < 310 and detail["envdAccessToken"] == sandbox["envdAccessToken"]
        again = client.post(f"/v2{path}/connect", json={"timeout": 100})
        assert again.status_code == 200 and again.json()["envdAccessToken"] == sandbox["envdAccessToken"]
        assert client.get(path).json()["endAt"] == detail["endAt"], "never shortened"
        # Traffic for a guest carries no API key; that is what tells it from calls of the API.
        guest = httpx.Client(base_url=platform.http_url, timeout=60, headers={
            "E2b-Sandbox-Id": sandbox["sandboxID"], "E2b-Sandbox-Port": "49983", "X-Access-Token": sandbox["envdAccessToken"]})
        assert guest.get("/envs").json()["E2B_TEMPLATE_ID"] == sandbox["templateID"]
        # An answer to a call whose client reads no compression, as every unary one.
        listed = guest.post("/process.Process/List", json={}, headers={"Accept-Encoding": "gzip", "Connect-Timeout-Ms": "60000"})
        assert listed.json() in ({}, {"processes": []}) and "content-encoding" not in listed.headers
        # The older spelling of an id, and the lists that older clients ask.
        assert client.get(f"{path}-6532622b").json()["sandboxID"] == sandbox["sandboxID"]
        assert sandbox["sandboxID"] in [one["sandboxID"] for one in client.get("/sandboxes").json()]
        assert client.post(f"{path}/refreshes", json={"duration": 30}).status_code == 204
        # Every refusal has both members, and a success without a body has none.
        for answer in (client.post("/v2/sandboxes", json={}), client.post(f"{path}/timeout", content=b"{"), client.get("/no/such/path"),
                       client.get(path, headers={"X-API-KEY": "e2b_" + "0" * 40}), client.request("BREW", path),
                       client.post("/sandboxes", json={"templateID": "base", "timeout": 10**9}), client.get("/v2/sandboxes?limit=1000")):
            assert 400 <= answer.status_code < 500 and answer.json()["code"] == answer.status_code and answer.json()["message"], answer.text
        gone = [client.delete(path) for _ in range(2)]
        assert [one.status_code for one in gone] == [204, 404] and gone[0].content == b"" and gone[1].json()["message"]
        assert guest.get("/health").status_code == 502
    finally:
        client.close()


@pytest.mark.parametrize("headers, status", [
    ({"E2b-Sandbox-Port": None}, 400), ({"E2b-Sandbox-Id": None}, 400), ({"E2b-Sandbox-Port": "http"}, 400),
    ({"E2b-Sandbox-Id": "UPPER-case"}, 400), ({"E2b-Sandbox-Port": "9999"}, 502)])
def test_addresses_that_lead_nowhere(shared, mode, platform, headers, status):
    import httpx
    if mode == "url":
        asked = {"E2b-Sandbox-Id": shared.sandbox_id, "E2b-Sandbox-Port": "49983", **headers}
        answer = httpx.get(platform.http_url + "/x", headers={k: v for k, v in asked.items() if v is not None})
    else:
        port, name = headers.get("E2b-Sandbox-Port", "49983"), headers.get("E2b-Sandbox-Id", shared.sandbox_id)
        label = "-".join(part for part in (port, name) if part is not None)
        answer = httpx.get(f"https://127.0.0.1:{platform.tls_port}/x", headers={"Host": f"{label}.{platform.domain}"}, verify=False)
    assert answer.status_code == status and answer.json()["code"] == status and answer.json()["message"], answer.text


SERVER = r"""
import hashlib, base64, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            accept = base64.b64encode(hashlib.sha1((self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            head = self.rfile.read(6)
            data = self.rfile.read(head[1] & 127)
            text = bytes(byte ^ head[2 + i % 4] for i, byte in enumerate(data))
            self.wfile.write(bytes([0x81, len(text)]) + text)
            self.close_connection = True
            return
        body = (self.headers["Host"] + " " + str(self.headers.get("X-Forwarded-Host"))).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", 8001), Handler).serve_forever()
"""


@pytest.fixture
def private(e2b_env, mode):
    """A sandbox whose ports are not public and whose server sees another host."""
    if mode == "url":
        pytest.skip("host names and signed URLs: the plain-URL mode has none (docs/guide/e2b.md)")
    from e2b import Sandbox
    sandbox = Sandbox.create(timeout=300, network={"allow_public_traffic": False, "mask_request_host": "inside.test:${PORT}"})
    try:
        yield sandbox
    finally:
        sandbox.kill()


def test_private_ports_masked_hosts_web_sockets_and_signed_urls(private, platform):
    import ssl
    import urllib.error
    import urllib.request
    context = ssl.create_default_context(cafile=platform.ca_file)

    def visit(url, data=None, **headers):
        request = urllib.request.Request(url, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, context=context, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    private.files.write("/tmp/server.py", SERVER)
    private.commands.run("python3 /tmp/server.py", background=True, timeout=0)
    host = private.get_host(8001)
    token = {"e2b-traffic-access-token": private.traffic_access_token}
    eventually(lambda: visit(f"https://{host}/", **token)[0] == 200, 30, "the server answers")
    assert visit(f"https://{host}/", **token)[1] == f"inside.test:8001 {host}"
    for wrong in ({}, {"e2b-traffic-access-token": "0" * 64}):
        status, body = visit(f"https://{host}/", **wrong)
        assert status == 403 and json.loads(body)["code"] == 403 and json.loads(body)["sandboxId"] == private.sandbox_id

    import socket
    name, port = host.split(":")
    with socket.create_connection(("127.0.0.1", int(port)), 20) as plain, context.wrap_socket(plain, server_hostname=name) as peer:
        peer.sendall(f"GET /socket HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\ne2b-traffic-access-token: {private.traffic_access_token}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += peer.recv(4096)
        assert answer.startswith(b"HTTP/1.1 101 ") and b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer
        peer.sendall(b"\x81\x85\0\0\0\0hello")
        assert peer.recv(64) == b"\x81\x05hello"

    # A signed URL names one path, one operation, one user and one end.
    form = (b'--b\r\nContent-Disposition: form-data; name="file"; filename="ignored"\r\n\r\nsigned\r\n--b--\r\n',)
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    upload = private.upload_url("/home/user/s.txt", user="user", use_signature_expiration=60)
    assert visit(upload, *form, **kind)[0] == 200 and private.files.read("/home/user/s.txt") == "signed"
    download = private.download_url("/home/user/s.txt", user="user")
    assert visit(download) == (200, "signed")
    for url, said in ((upload, "invalid signature"), (download.replace("s.txt", "t.txt"), "invalid signature"),
                      (download.replace("v1_", "v1_A"), "invalid signature")):
        status, body = visit(url)
        assert (status, json.loads(body)) == (401, {"code": 401, "message": said}), (url, body)
    for status, body in (visit(download.split("&signature")[0]), visit(download, **{"X-Access-Token": "0" * 64})):
        assert status == 401 and json.loads(body)["code"] == 401, body
