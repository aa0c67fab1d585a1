"""A small internet of our own: a network namespace with hosts on 203.0.113.0/24, in which the gateways of the installation
under test live. What arrives is written down, one JSON line each: the servers' side of every verdict.

    203.0.113.53  DNS: every name below .example of HOSTS
    203.0.113.10  HTTPS and HTTP of two tenants on one address: allowed.example and neighbour.example
    203.0.113.11  HTTPS of redirect.example, which sends its visitors to neighbour.example
    203.0.113.20  TCP echo on port 7: echo.example
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

HOSTS = {
    "allowed.example": "203.0.113.10",
    "neighbour.example": "203.0.113.10",
    "redirect.example": "203.0.113.11",
    "echo.example": "203.0.113.20",
    "inside.example": "10.1.2.3",  # a public name that leads to a private address
}
DNS = "203.0.113.53"
NETWORK = "203.0.113.0/24"


class Rig:
    """The namespace, its authority, and the process with the servers. For tests: made once, removed at the end."""

    def __init__(self, directory: pathlib.Path, name: str):
        self.directory = directory
        self.name = name
        self.journal = directory / "arrived.jsonl"
        self.process: subprocess.Popen | None = None

    @property
    def namespace(self) -> str:
        return f"/run/netns/{self.name}"

    @property
    def ca_file(self) -> pathlib.Path:
        return self.directory / "ca.pem"

    def start(self) -> "Rig":
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o755)  # the worker reads the authority
        self._make_certificates()
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        for command in (["link", "set", "lo", "up"], *(["addr", "add", f"{a}/32", "dev", "lo"] for a in
                                                       sorted({*HOSTS.values(), DNS} - {"10.1.2.3"}))):
            subprocess.run(["ip", "-n", self.name, *command], check=True)
        self.journal.write_text("")
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, __file__, str(self.directory)],
            stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().strip() == "ready"
        return self

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def arrived(self, since: float = 0.0, **wanted) -> list[dict]:
        """What the servers saw after a moment (time.time()), of those with these fields."""
        lines = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [l for l in lines if l["at"] >= since and all(l.get(k) == v for k, v in wanted.items())]

    def _make_certificates(self) -> None:
        def openssl(*words: str) -> None:
            subprocess.run(["openssl", *words], cwd=self.directory, check=True, capture_output=True)

        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "ca.key",
                "-out", "ca.pem", "-days", "2", "-subj", "/CN=rig authority", "-addext", "basicConstraints=critical,CA:TRUE",
                "-addext", "keyUsage=critical,keyCertSign")
        names = [n for n in HOSTS if n not in ("echo.example", "inside.example")]
        for name in names:
            (self.directory / "ext").write_text(f"subjectAltName=DNS:{name}\n")
            openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key",
                    "-out", "csr", "-subj", f"/CN={name}")
            openssl("x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                    "-extfile", "ext", "-out", f"{name}.pem")
        self.ca_file.chmod(0o644)


# -- the servers, run inside the namespace ------------------------------------------------------------------------------


class Servers:
    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.lock = threading.Lock()
        self.contexts = {}
        for pem in directory.glob("*.example.pem"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem, pem.with_suffix(".key"))
            self.contexts[pem.stem] = context

    def note(self, **fields) -> None:
        with self.lock, open(self.directory / "arrived.jsonl", "a") as journal:
            journal.write(json.dumps({"at": time.time(), **fields}) + "\n")

    def dns(self) -> None:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((DNS, 53))
        while True:
            query, peer = server.recvfrom(2048)
            labels, at = [], 12
            while query[at]:
                labels.append(query[at + 1:at + 1 + query[at]].decode("latin-1"))
                at += query[at] + 1
            question, name = query[12:at + 5], ".".join(labels).lower()
            kind = struct.unpack("!H", query[at + 1:at + 3])[0]
            self.note(kind="dns", name=name, type=kind)
            address = HOSTS.get(name) if kind == 1 else None
            answer = b"\xc0\x0c\0\1\0\1" + struct.pack("!IH", 60, 4) + socket.inet_aton(address) if address else b""
            flags = 0x8180 if name in HOSTS else 0x8183
            head = query[:2] + struct.pack("!HHHHH", flags, 1, 1 if address else 0, 0, 0)
            server.sendto(head + question + answer, peer)

    def listen(self, address: str, port: int, serve) -> None:
        server = socket.create_server((address, port), backlog=64)
        while True:
            peer, _ = server.accept()
            threading.Thread(target=self.guarded, args=(serve, peer), daemon=True).start()

    @staticmethod
    def guarded(serve, peer) -> None:
        with contextlib.suppress(OSError, ValueError), peer:
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
            self.http(tls, sni=asked.get("sni"))

    def http(self, peer, sni: str | None = None) -> None:
        stream = peer.makefile("rwb")
        while line := stream.readline():
            method, path, _ = line.decode("latin-1").split(" ", 2)
            headers = {}
            while (line := stream.readline().decode("latin-1").strip()):
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = stream.read(int(headers.get("content-length", 0)))
            host = headers.get("host", "").split(":")[0]
            self.note(kind="http", sni=sni, host=host, method=method, path=path, headers=headers, bytes=len(body))
            if host == "redirect.example":
                stream.write(b"HTTP/1.1 302 Found\r\nLocation: https://neighbour.example/\r\nContent-Length: 0\r\n\r\n")
            else:
                text = f"hello from {host}, path {path}\n".encode()
                stream.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            stream.flush()

    def echo(self, peer: socket.socket) -> None:
        self.note(kind="echo")
        while data := peer.recv(4096):
            peer.sendall(data)

    def run(self) -> None:
        jobs = [(self.dns,), (self.listen, "203.0.113.10", 443, self.https), (self.listen, "203.0.113.10", 80, self.http),
                (self.listen, "203.0.113.11", 443, self.https), (self.listen, "203.0.113.20", 7, self.echo)]
        for job, *arguments in jobs:
            threading.Thread(target=job, args=arguments, daemon=True).start()
        time.sleep(0.3)
        print("ready", flush=True)
        signal.pause()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Servers(pathlib.Path(sys.argv[1])).run()
