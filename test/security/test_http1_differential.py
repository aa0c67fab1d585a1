"""The gateway's HTTP/1 against two other parsers, h11 and Python's own http.server and http.client, over the corpus of the fuzzer.
What ours accepts, both others accept with the same meaning: a message on which two servers could disagree never passes."""

import http.client
import http.server
import io
import json
import pathlib
import subprocess

import h11
import pytest
from platform_under_test import PROGRAMS

CORPUS = pathlib.Path(__file__).parents[1] / "fuzz" / "corpus" / "gateway_http_fuzz"
# Accepted by ours on purpose, with why another one's different reading is harmless.
HARMLESS = {
    # Python folds slashes at the start of a target. Where a rule looks at paths, ours refuses the target later (case H23).
    "h03-5": "python", "h23-5": "python",
    # Interim answers: the gateway reads on behind 100 and refuses a 101 that was not asked for (case H30).
    "answer-endless-interim": "python", "answer-switch-unasked": "h11",
}


def ours(kind: str) -> dict:
    program = PROGRAMS.parent / "test" / "fuzz" / "http1_verdict"
    assert program.exists(), "build the target http1_verdict"
    said = subprocess.run([str(program), kind, str(CORPUS)], capture_output=True, text=True, check=True).stdout
    return {v["file"]: v for v in map(json.loads, said.splitlines())}


def origin_form(target: str) -> str:
    """An absolute target means its path; the gateway sends that."""
    if target.startswith(("http://", "https://")):
        return "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
    return target


def by_h11(data: bytes, client: bool) -> dict:
    try:
        peer = h11.Connection(our_role=h11.CLIENT if client else h11.SERVER, max_incomplete_event_size=1 << 20)
        if client:
            peer.send(h11.Request(method="GET", target="/", headers=[("Host", "a.example")]))
            peer.send(h11.EndOfMessage())
        peer.receive_data(data)
        head = peer.next_event()
        if not isinstance(head, (h11.Request, h11.Response, h11.InformationalResponse)):
            return {"accepted": False}
        out = {"accepted": True, "body": "incomplete"}
        if client:
            out["status"] = head.status_code
            if head.status_code < 200:
                return out
        else:
            out.update(method=head.method.decode(), target=origin_form(head.target.decode("latin-1")),
                       host=[v.decode("latin-1") for k, v in head.headers if k == b"host"])
        body = b""
        while True:
            event = peer.next_event()
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return {**out, "body": body.hex()}
            elif event is h11.NEED_DATA and client and not peer.their_state is h11.DONE:
                peer.receive_data(b"")  # the server closed
            else:
                return out
    except h11.RemoteProtocolError:
        return out if "out" in locals() else {"accepted": False}


class Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, data: bytes):
        self.rfile, self.wfile = io.BytesIO(data), io.BytesIO()
        self.client_address, self.server, self.close_connection = ("", 0), None, True
        self.raw_requestline = self.rfile.readline(65537)
        self.good = self.parse_request()

    def log_message(self, *_):
        pass

    def send_error(self, code, message=None, explain=None):
        self.refused = code


def by_python_server(data: bytes) -> dict:
    handler = Handler(data)
    if not handler.good:
        return {"accepted": False}
    return {"accepted": True, "method": handler.command, "target": origin_form(handler.path),
            "host": handler.headers.get_all("host") or []}


class Peer:
    def __init__(self, data: bytes):
        self.data = data

    def makefile(self, *_):
        return io.BytesIO(self.data)


def by_python_client(data: bytes) -> dict:
    answer = http.client.HTTPResponse(Peer(data), method="GET")
    try:
        answer.begin()
        return {"accepted": True, "status": answer.status, "body": answer.read().hex()}
    except http.client.IncompleteRead:
        return {"accepted": True, "status": answer.status, "body": "incomplete"}
    except (http.client.HTTPException, ValueError):
        return {"accepted": False}


def differs(mine: dict, other: dict) -> str:
    if not other["accepted"]:
        return "refused"
    for key in ("method", "target", "status"):
        if key in mine and key in other and mine[key] != other[key]:
            return f"{key}: {other[key]!r}"
    if "host" in other and "host" in mine and [h.lower().rstrip(".").split(":")[0] for h in other["host"]] != [mine["host"]]:
        return f"host: {other['host']!r}"
    if "body" in other and mine.get("body") not in (None, "refused", "incomplete") and other["body"] != mine["body"]:
        return f"body: {other['body']!r}"
    return ""


@pytest.mark.parametrize("kind", ["request", "response"])
def test_what_we_accept_everybody_reads_alike(kind):
    verdicts = ours(kind)
    assert len(verdicts) >= 200, "the corpus is there"
    accepted = {name: v for name, v in verdicts.items() if v["accepted"]}
    assert len(accepted) >= (60 if kind == "request" else 2), "and some of it is accepted"
    found = {}
    for name, mine in accepted.items():
        data = (CORPUS / name).read_bytes()
        others = {"h11": by_h11(data, kind == "response"),
                  "python": by_python_client(data) if kind == "response" else by_python_server(data)}
        for who, other in others.items():
            if (why := differs(mine, other)) and HARMLESS.get(name) != who:
                found[name, who] = f"ours: {mine}; {who}: {why}"
    assert not found, "\n".join(f"{key}: {text}" for key, text in found.items())


def test_where_the_others_disagree_we_refuse():
    """The same from the other side, and proof that the comparison can fail: the others do disagree on this corpus."""
    verdicts = ours("request")
    disagreed = []
    for name in verdicts:
        data = (CORPUS / name).read_bytes()
        one, two = by_h11(data, False), by_python_server(data)
        if one["accepted"] != two["accepted"] or one["accepted"] and (
                one["method"], one["target"], [h.lower() for h in one["host"]]) != (two["method"], two["target"],
                                                                                   [h.lower() for h in two["host"]]):
            disagreed.append(name)
    assert len(disagreed) >= 20
    assert not [name for name in disagreed if verdicts[name]["accepted"] and name not in HARMLESS]
