"""The servers of rig.py: run inside its namespace, with the directory of the rig as the only argument."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import ssl
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from rig import ALIASES, DNS, HOSTS, SILENT  # noqa: E402

# What hostile.example answers: the path's first part says which. `{token}` is in what must not pass for a second answer.
HOSTILE = {
    "length_and_chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nEVIL!\r\n0\r\n\r\n",
    "two_lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nEVIL!!",
    "odd_coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nEVIL!\r\n0\r\n\r\n",
    "switch_unasked": b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nEVIL!",
    "endless_interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 3000,
    "huge_head": b"HTTP/1.1 200 OK\r\nX-Big: " + b"a" * 200_000 + b"\r\n\r\nEVIL!",
    "many_fields": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000 + b"\r\nEVIL!",
    "bad_chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nEVIL!\r\n0\r\n\r\n",
    "bare_lf": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nEVIL!",
    "nul": b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nEVIL!",
    "folded": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 5\r\n\r\nEVIL!",
    "odd_status": b"HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nEVIL!",
    "old_version": b"HTTP/0.9 200 OK\r\nContent-Length: 5\r\n\r\nEVIL!",
    "no_http": b"EVIL! EVIL! EVIL!\r\n\r\n",
    # Two answers to one request: the second must not become the answer to the next.
    "one_too_many": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine" + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nEVIL!",
}


def encoded(value: str, form: str) -> bytes:
    raw = value.encode()
    return {
        "raw": lambda: raw,
        "hex": lambda: raw.hex().encode(),
        "hex_upper": lambda: raw.hex().upper().encode(),
        "base64": lambda: base64.b64encode(raw),
        "base64_1": lambda: base64.b64encode(b"." + raw),
        "base64_2": lambda: base64.b64encode(b".." + raw),
        "base64url": lambda: base64.urlsafe_b64encode(raw),
        "percent": lambda: "".join(f"%{b:02X}" for b in raw).encode(),
        "json": lambda: json.dumps(value).encode(),
        "reversed": lambda: raw[::-1],
    }[form]()


class Conversation:
    """Bytes of one connection; every one that is read is in the journal, so nothing can arrive unseen."""

    def __init__(self, servers: "Servers", peer, sni: str | None = None):
        self.servers, self.peer, self.sni = servers, peer, sni
        self.where = "{}:{}".format(*peer.getsockname())
        self.number = next(servers.numbers)
        self.ahead = b""

    def more(self) -> bool:
        data = self.peer.recv(65536)
        if data:
            self.servers.note(kind="bytes", connection=self.number, where=self.where, sni=self.sni, text=data.decode("latin-1"))
        self.ahead += data
        return bool(data)

    def line(self) -> bytes:
        while b"\n" not in self.ahead:
            if not self.more():
                return b""
        line, _, self.ahead = self.ahead.partition(b"\n")
        return line.rstrip(b"\r") + b"\n"

    def take(self, size: int) -> bytes:
        while len(self.ahead) < size and self.more():
            pass
        taken, self.ahead = self.ahead[:size], self.ahead[size:]
        return taken


class Servers:
    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.journal = open(directory / "arrived.jsonl", "a", buffering=1)
        self.contexts = {}
        for pem in directory.glob("*.*.pem"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem, pem.with_suffix(".key"))
            self.contexts[pem.stem] = context

    def note(self, **fields) -> None:
        with self.lock:
            self.journal.write(json.dumps({"at": time.time(), **fields}) + "\n")

    # -- names ------------------------------------------------------------------------------------------------------

    def dns(self) -> None:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((DNS, 53))
        while True:
            query, peer = server.recvfrom(2048)
            with contextlib.suppress(IndexError, struct.error):
                answer = self.answer(query)
                if answer:
                    server.sendto(answer, peer)

    def answer(self, query: bytes) -> bytes | None:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode("latin-1"))
            at += query[at] + 1
        question, name = query[12:at + 5], ".".join(labels).lower()
        kind = struct.unpack("!H", query[at + 1:at + 3])[0]
        self.note(kind="dns", name=name, type=kind, text=name)
        if name in SILENT:
            return None
        records = b""
        count = 0
        known = name in HOSTS or name in ALIASES
        if name in ALIASES:
            target = b"".join(bytes([len(l)]) + l.encode() for l in ALIASES[name].split(".")) + b"\0"
            records += b"\xc0\x0c" + struct.pack("!HHIH", 5, 1, 60, len(target)) + target
            records_owner = target
            count += 1
            name = ALIASES[name]
        else:
            records_owner = b"\xc0\x0c"
        if kind == 1:
            for address in HOSTS.get(name, []):
                records += records_owner + b"\0\1\0\1" + struct.pack("!IH", 0, 4) + socket.inet_aton(address)
                count += 1
        flags = 0x8180 if known else 0x8183
        return query[:2] + struct.pack("!HHHHH", flags, 1, count, 0, 0) + question + records

    # -- connections ------------------------------------------------------------------------------------------------

    def listen(self, address: str, port: int, serve) -> None:
        server = socket.create_server((address, port), backlog=64)
        while True:
            peer, _ = server.accept()
            threading.Thread(target=self.guarded, args=(serve, peer), daemon=True).start()

    @staticmethod
    def guarded(serve, peer) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError), peer:
            peer.settimeout(30)
            serve(peer)

    def https(self, peer: socket.socket) -> None:
        asked = {}

        def choose(tls, name, _context):
            asked["sni"] = name
            if name in self.contexts:
                tls.context = self.contexts[name]

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        first = self.directory / "allowed.example.pem"
        context.load_cert_chain(first, first.with_suffix(".key"))
        context.sni_callback = choose
        with context.wrap_socket(peer, server_side=True) as tls:
            self.serve(Conversation(self, tls, asked.get("sni")))

    def http(self, peer: socket.socket) -> None:
        self.serve(Conversation(self, peer))

    def serve(self, talk: Conversation) -> None:
        """Lax on purpose: what is understood here is what a careless server would understand."""
        while line := talk.line():
            words = line.decode("latin-1").split()
            method, path = words[0], words[1] if len(words) > 1 else "/"
            headers: dict[str, str] = {}
            while (line := talk.line().strip()):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            body = self.body(talk, headers)
            host = headers.get("host", "").split(":")[0]
            self.note(kind="http", sni=talk.sni, host=host, method=method, path=path, headers=headers, bytes=len(body))
            if not self.respond(talk, host, path, headers):
                return

    def body(self, talk: Conversation, headers: dict) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", ""):
            return talk.take(int(headers.get("content-length", 0)))
        body = b""
        while size := int(talk.line().split(b";")[0], 16):
            body += talk.take(size)
            talk.line()
        while talk.line().strip():
            pass
        return body

    def respond(self, talk: Conversation, host: str, path: str, headers: dict) -> bool:
        send = talk.peer.sendall
        if host == "redirect.example":
            send(b"HTTP/1.1 302 Found\r\nLocation: https://neighbour.example/\r\nContent-Length: 0\r\n\r\n")
        elif host == "hostile.example" and path.split("/")[1] in HOSTILE:
            send(HOSTILE[path.split("/")[1]])
            return path.split("/")[1] == "one_too_many"
        elif host == "api.example" and path.startswith("/v1/reflect/"):
            self.reflect(send, path.split("/")[3], headers)
        elif path.startswith("/v1/endless"):
            send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                send(b"1\r\n.\r\n")
                time.sleep(0.1)
        elif path.startswith("/files/"):
            self.send_file(send, path.split("?")[0])
        elif headers.get("upgrade", "").lower() == "websocket":
            send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            while talk.more():
                send(talk.ahead)
                talk.ahead = b""
        else:
            text = f"hello from {host}, path {path}\n".encode()
            send(b"HTTP/1.1 200 OK\r\nAlt-Svc: h3=\":443\"\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        return True

    def send_file(self, send, path: str) -> None:
        """What a test has put below the rig's directory: a package index, a repository."""
        file = self.directory / path.lstrip("/") / ("index.html" if path.endswith("/") else "")
        known = ".." not in path and file.is_file()
        body = file.read_bytes() if known else b"no such file\n"
        form = "text/html" if path.endswith("/") else "application/octet-stream"
        send(f"HTTP/1.1 {'200 OK' if known else '404 Not Found'}\r\nContent-Type: {form}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    @staticmethod
    def reflect(send, form: str, headers: dict) -> None:
        """Sends back the credential that it was given, in one encoding, torn over chunks, and in a header."""
        value = headers.get("x-api-key", "")
        text = b"[" + encoded(value, form) + b"]" if value else b"[none]"
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (text[:7], text[7:20], text[20:]) if part)
        head = b"HTTP/1.1 200 OK\r\nSet-Cookie: session=planted\r\nTransfer-Encoding: chunked\r\n"
        if form == "raw":
            head += b"X-Echo: " + value.encode() + b"\r\n"
        send(head + b"\r\n" + chunks + b"0\r\n\r\n")

    def echo(self, peer: socket.socket) -> None:
        self.note(kind="echo")
        talk = Conversation(self, peer)
        while talk.more():
            peer.sendall(talk.ahead)
            talk.ahead = b""

    def run(self) -> None:
        jobs = [(self.dns,), (self.listen, "203.0.113.20", 7, self.echo)]
        web = sorted({a for group in HOSTS.values() for a in group} - {"203.0.113.20"})
        jobs += [(self.listen, address, 443, self.https) for address in web]
        jobs += [(self.listen, address, 80, self.http) for address in web]
        jobs += [(self.listen, "203.0.113.66", port, self.echo) for port in (22, 25, 853, 8080, 9418)]
        jobs += [(self.listen, "203.0.113.10", port, self.echo) for port in (22, 853, 8080, 9418)]
        for job, *arguments in jobs:
            threading.Thread(target=job, args=arguments, daemon=True).start()
        time.sleep(0.3)
        print("ready", flush=True)
        signal.pause()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Servers(pathlib.Path(sys.argv[1])).run()
