"""The installation under test has an uplink here: the rig's namespace, a small internet of our own (rig.py)."""

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
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
        shutil.rmtree(internet.directory)


@pytest.fixture(scope="session")
def platform(rig):
    if os.geteuid() != 0:
        pytest.exit("the security tests make namespaces, mounts and users: run them as root", returncode=3)
    installation = Platform()
    installation.up_options = ["--uplink", rig.namespace, "--resolver", DNS, "--private-route", NETWORK,
                               "--upstream-ca-file", str(rig.ca_file)]
    try:
        started = installation.start()
        # The suite changes the slot's rules itself, to look behind them and to take them away.
        (installation.run_dir / "hostd" / "rules-unwatched").touch()
        yield started
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
        # Asked before anything puts another policy in force, whatever order the tests come in.
        self.at_start = self.run("getent ahostsv4 first.example; getent ahostsv4 second.example || echo none")[1]

    def allow(self, *rules: dict, credentials: list | None = None, **policy) -> dict:
        """Puts a policy in force; its rules are all that is allowed."""
        return self.put_policy({"posture": "allowlist", "rules": [dict(rule, id=f"rule-{n}") for n, rule in enumerate(rules)],
                                **policy}, credentials)

    def put_policy(self, level: dict, credentials: list | None = None) -> dict:
        self.generation += 1
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


@pytest.fixture(scope="session")
def slot(platform, guest):
    """The network namespace of the guest's slot."""
    journal = json.loads((platform.data_dir / "worker" / "sandboxes" / f"{guest.id}.json").read_text())
    return platform.run_dir / "hostd" / "netns" / str(journal["slot"])


class Witness:
    """What came past the guard of a slot (witness.py)."""

    def __init__(self, slot: pathlib.Path, output: pathlib.Path):
        self.slot, self.output = slot, output
        output.write_text("")
        self.process = subprocess.Popen([sys.executable, str(pathlib.Path(__file__).with_name("witness.py")), str(slot), str(output)],
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().strip() == "ready"

    def watch_again(self) -> None:
        """After every rule of the slot was flushed, its own with them."""
        import witness

        subprocess.run(["nsenter", f"--net={self.slot}", "nft", "-f", "-"], input=witness.TABLE, text=True, check=True)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)

    def seen(self) -> dict[str, collections.Counter]:
        """By kind (frame, trap): how often each token was seen."""
        found = {"frame": collections.Counter(), "trap": collections.Counter()}
        for line in self.output.read_text().splitlines():
            one = json.loads(line)
            found[one["kind"]].update(re.findall(r"tk[0-9a-f]{10}", one["token"]))
        return found

    def tracked(self) -> int:
        """Connections of this namespace in the kernel's table; -1 where the kernel has none at all."""
        done = subprocess.run(["nsenter", f"--net={self.slot}", "cat", "/proc/sys/net/netfilter/nf_conntrack_count"],
                              capture_output=True, text=True, check=False)
        return int(done.stdout) if done.returncode == 0 else -1


@pytest.fixture(scope="session")
def witness(slot, rig):
    seen = Witness(slot, rig.directory / "witness.jsonl")
    yield seen
    seen.stop()


@pytest.fixture(scope="session")
def slot_rules(slot):
    """Loads the slot's rules (src/hostd/slot.nft, or a changed text of it) anew, in one transaction."""
    import mutate

    def load(text: str | None = None) -> None:
        present = subprocess.run(["nsenter", f"--net={slot}", "nft", "list", "tables"], capture_output=True, text=True, check=True)
        gone = "".join(f"delete {line}\n" for line in present.stdout.splitlines() if line.split()[-1] in ("guard", "steer"))
        subprocess.run(["nsenter", f"--net={slot}", "nft", "-f", "-"], input=gone + (text or mutate.rules(mutate.load(), "")),
                       text=True, check=True)

    return load


class Verdicts:
    """Of this run, for the tables in docs/security (report.py)."""

    def __init__(self):
        self.cases: dict = {}
        self.live: dict[str, list[str]] = {}
        self.mutations: dict[str, list[str]] = {}


@pytest.fixture(scope="session")
def verdicts():
    kept = Verdicts()
    yield kept
    if os.environ.get("SPACE_SECURITY_VERDICTS"):
        import report

        report.add(kept, pathlib.Path(os.environ["SPACE_SECURITY_VERDICTS"]))


@pytest.fixture(scope="session")
def attacker(guest, rig, witness, decisions_of_session, broker):
    from attacker import Attacker

    return Attacker(guest, rig, witness, decisions_of_session, broker)


@pytest.fixture(scope="session")
def results(attacker, verdicts):
    from attacker import CASES

    verdicts.cases = {case.id: case for case in attacker.run(CASES)}
    return verdicts.cases


@pytest.fixture
def decisions(decisions_of_session):
    return decisions_of_session


@pytest.fixture(scope="session")
def decisions_of_session(platform, guest):
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
