"""A small internet of our own: a network namespace with hosts on 203.0.113.0/24, in which the gateways of the installation
under test live. What arrives is written down, one JSON line each: the servers' side of every verdict (rig_servers.py).

    203.0.113.53  DNS: the names of HOSTS, and some that answer badly
    203.0.113.10  HTTPS and HTTP of two tenants on one address: allowed.example and neighbour.example
    203.0.113.11  HTTPS of redirect.example, which sends its visitors to neighbour.example
    203.0.113.12  HTTPS of hosts with certificates that nobody should accept
    203.0.113.13  HTTP of hostile.example, whose answers break the protocol
    203.0.113.14  HTTPS of api.example, which tells its visitors what they sent
    203.0.113.20  TCP echo on port 7: echo.example
    203.0.113.66  everything on every port that an attacker would want: evil.example
    10.1.2.3, 169.254.169.254, 127.0.0.1   what a public name must never lead to: they are there, and answer
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import subprocess
import sys

HOSTS = {
    "allowed.example": ["203.0.113.10"],
    "second.example": ["203.0.113.10"],
    "neighbour.example": ["203.0.113.10"],
    "paths.example": ["203.0.113.10"],
    "sockets.example": ["203.0.113.10"],
    "pass.example": ["203.0.113.10"],
    "redirect.example": ["203.0.113.11"],
    "selfsigned.example": ["203.0.113.12"],
    "expired.example": ["203.0.113.12"],
    "wrongname.example": ["203.0.113.12"],
    "cnonly.example": ["203.0.113.12"],
    "deep.wild.example": ["203.0.113.12"],
    "hostile.example": ["203.0.113.13"],
    "api.example": ["203.0.113.14"],
    "bound.example": ["203.0.113.14"],
    "api.github.com": ["203.0.113.14"],  # this rig's own: the name has a profile in src/gateway/guest_auth.cpp
    "echo.example": ["203.0.113.20"],
    "evil.example": ["203.0.113.66"],
    # Public names that lead inside.
    "inside.example": ["10.1.2.3"],
    "metadata.example": ["169.254.169.254"],
    "loopback.example": ["127.0.0.1"],
    "mixed.example": ["10.1.2.3", "203.0.113.10"],
}
ALIASES = {"alias.example": "inside.example", "loop.example": "loop.example"}
SILENT = ("silent.example",)  # no answer at all
DNS = "203.0.113.53"
NETWORK = "203.0.113.0/24"
PLAIN_NAMES = ("allowed.example", "second.example", "neighbour.example", "redirect.example", "pass.example", "api.example",
               "bound.example", "api.github.com", "evil.example")


class Seen:
    """Everything that the servers read, put together by connection (or query): the journal is read once for many tokens."""

    def __init__(self, lines: list[dict]):
        self.spoken: dict = {}
        self.places: dict = {}
        for line in lines:
            if line["kind"] in ("bytes", "dns"):
                key = line.get("connection", f"dns{line['at']}")
                self.spoken.setdefault(key, []).append(line["text"])
                self.places[key] = line.get("where", "")
        self.spoken = {key: "".join(parts) for key, parts in self.spoken.items()}

    def _with(self, token: str) -> list:
        return [key for key, text in self.spoken.items() if token in text or token.upper() in text]

    def bytes_with(self, token: str) -> str:
        """All bytes of the connections and queries in which this token was seen; "" = nothing."""
        return "\n".join(self.spoken[key] for key in self._with(token))

    def places_with(self, token: str) -> set[str]:
        return {self.places[key] for key in self._with(token)}


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
        addresses = sorted({a for group in HOSTS.values() for a in group} | {DNS})
        for command in (["link", "set", "lo", "up"],
                        *(["addr", "add", f"{a}/32", "dev", "lo"] for a in addresses if a != "127.0.0.1")):
            subprocess.run(["ip", "-n", self.name, *command], check=True)
        self.journal.write_text("")
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, str(pathlib.Path(__file__).with_name("rig_servers.py")),
             str(self.directory)], stdout=subprocess.PIPE, text=True)
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

    def seen(self, since: float = 0.0) -> "Seen":
        return Seen(self.arrived(since))

    def bytes_with(self, token: str, since: float = 0.0) -> str:
        return self.seen(since).bytes_with(token)

    # -- certificates -----------------------------------------------------------------------------------------------

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.directory, check=True, capture_output=True)

    def _make_certificates(self) -> None:
        ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._openssl("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=rig authority",
                      "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        for name in PLAIN_NAMES:
            self._issue(name, f"DNS:{name}")
        self._issue("wrongname.example", "DNS:other.example")
        self._issue("deep.wild.example", "DNS:*.example")  # one label too few
        self._issue("cnonly.example", None)
        self._issue("expired.example", "DNS:expired.example", expired=True)
        self._openssl("req", "-x509", *ec, "-keyout", "selfsigned.example.key", "-out", "selfsigned.example.pem", "-days", "2",
                      "-subj", "/CN=selfsigned.example", "-addext", "subjectAltName=DNS:selfsigned.example")
        self.ca_file.chmod(0o644)

    def _issue(self, name: str, alternative: str | None, expired: bool = False) -> None:
        (self.directory / "ca.conf").write_text(
            "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n"
            "unique_subject=no\n[p]\ncommonName=supplied\n[ext]\nbasicConstraints=CA:FALSE\n"
            + (f"subjectAltName={alternative}\n" if alternative else ""))
        if not (self.directory / "serial").exists():
            (self.directory / "serial").write_text("1000\n")
            (self.directory / "index.txt").write_text("")
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key",
                      "-out", "csr", "-subj", f"/CN={name}")
        when = ("-startdate", "200101000000Z", "-enddate", "200201000000Z") if expired else ("-days", "2")
        self._openssl("ca", "-batch", "-notext", "-config", "ca.conf", "-cert", "ca.pem", "-keyfile", "ca.key", "-in", "csr",
                      "-out", f"{name}.pem", "-extensions", "ext", *when)
