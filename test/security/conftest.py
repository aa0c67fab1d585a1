"""The installation under test has an uplink here: the rig's namespace, a small internet of our own (rig.py)."""

import contextlib
import json
import os
import pathlib
import random
import socket
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from platform_under_test import Platform  # noqa: E402
from rig import DNS, NETWORK, Rig  # noqa: E402


@pytest.fixture(scope="session")
def rig(tmp_path_factory):
    # Not below pytest's own directory, which nobody else may enter.
    name = f"rig{random.randrange(10**6)}"
    internet = Rig(pathlib.Path("/run") / f"space-{name}", name)
    try:
        yield internet.start()
    finally:
        internet.stop()
        for path in sorted(internet.directory.glob("*")):
            path.unlink()
        internet.directory.rmdir()


@pytest.fixture(scope="session")
def platform(rig):
    if os.geteuid() != 0:
        pytest.exit("the security tests make namespaces, mounts and users: run them as root", returncode=3)
    installation = Platform()
    installation.up_options = ["--uplink", rig.namespace, "--resolver", DNS, "--private-route", NETWORK,
                               "--upstream-ca-file", str(rig.ca_file)]
    try:
        yield installation.start()
    finally:
        if os.environ.get("SPACE_TEST_KEEP") != "1":
            installation.destroy()


class Service:
    """HTTP on a socket of the installation, as root: the worker (src/wire/worker.hpp), the broker (credential.hpp)."""

    def __init__(self, path):
        self.path = str(path)

    def call(self, method: str, path: str, body: object = None, seconds: float = 30) -> tuple[int, object]:
        text = b"" if body is None else json.dumps(body).encode()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(seconds)
            peer.connect(self.path)
            peer.sendall(f"{method} {path} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n"
                         f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
            answer = b""
            while part := peer.recv(65536):
                answer += part
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        return status, json.loads(rest) if rest.strip() else None


    @contextlib.contextmanager
    def follow(self, path: str):
        """A streamed answer: yields a function that waits for bytes in it."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(self.path)
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: worker\r\n\r\n".encode())
            heard = bytearray()

            def seen(wanted: bytes, seconds: float) -> bool:
                end = time.monotonic() + seconds
                while wanted not in heard and time.monotonic() < end:
                    peer.settimeout(max(0.1, end - time.monotonic()))
                    with contextlib.suppress(TimeoutError):
                        heard.extend(peer.recv(65536))
                return wanted in heard

            yield seen


@pytest.fixture(scope="session")
def worker(platform):
    return Service(platform.run_dir / "worker" / "worker.sock")


@pytest.fixture(scope="session")
def broker(platform):
    return Service(platform.run_dir / "broker" / "broker.sock")


class Guest:
    """A sandbox with a policy, and commands in it."""

    def __init__(self, platform, worker):
        from e2b import Sandbox

        self.worker = worker
        made = platform.api("POST", "/v1/sandboxes?wait=170", {
            "timeout_s": 3600, "policy": {"posture": "allowlist", "rules": [{"id": "first", "hosts": ["first.example"]}]}},
            timeout=200)
        self.id = (made.get("sandbox") or made)["id"]
        self.sandbox = Sandbox.connect(self.id, api_key=platform.key, api_url=platform.http_url,
                                       sandbox_url=platform.http_url)
        self.epoch = worker.call("GET", f"/sandboxes/{self.id}")[1]["epoch"]
        self.generation = 1  # that of the create

    def allow(self, *rules: dict, credentials: list | None = None, **policy) -> dict:
        """Puts a policy in force; its rules are all that is allowed."""
        self.generation += 1
        level = {"posture": "allowlist", "rules": [dict(rule, id=f"rule-{n}") for n, rule in enumerate(rules)], **policy}
        status, answer = self.worker.call("PUT", f"/sandboxes/{self.id}/policy", {
            "epoch": self.epoch,
            "policy": {"generation": self.generation, "levels": [{"level": "sandbox", "policy": level}]},
            "credentials": credentials})
        assert status == 200, answer
        assert answer["generation"] == self.generation
        return answer

    def run(self, command: str, user: str = "user", seconds: float = 60):
        """Also when the command fails: its exit code is a result here."""
        from e2b import CommandExitException

        started = time.monotonic()
        try:
            done = self.sandbox.commands.run(command, user=user, timeout=seconds)
        except CommandExitException as failed:
            done = failed
        return done.exit_code, done.stdout + done.stderr, time.monotonic() - started

    def python(self, program: str, seconds: float = 60) -> str:
        self.sandbox.files.write("/tmp/try.py", program)
        code, said, _ = self.run("python3 /tmp/try.py", user="root", seconds=seconds)
        assert code == 0, said
        return said.strip()


@pytest.fixture(scope="session")
def guest(platform, worker):
    made = Guest(platform, worker)
    yield made
    made.sandbox.kill()


@pytest.fixture
def decisions(platform, guest):
    """The records of the guest's decisions in the audit log, as they are on disk now."""
    def read(**wanted) -> list[dict]:
        found = []
        for path in sorted((platform.data_dir / "worker" / "audit").glob("audit-*.jsonl")):
            for line in path.read_text().splitlines():
                record = json.loads(line)
                record = record.get("record", record)
                if record.get("sandbox") == guest.id and all(record.get(k) == v for k, v in wanted.items()):
                    found.append(record)
        return found

    return read
