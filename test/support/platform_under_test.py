"""An installation of its own for tests: own directories, ports, names and user ids, beside a running one.

`Platform.start()` runs the same `space up` that a person runs. `leftovers()` compares what the kernel holds
against what was there before: processes, control groups, namespaces, mounts, sockets, files.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("SPACE_PROGRAMS", ROOT / "build" / "dev" / "src"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_politely() -> None:
    """The first signal that wants this process to end raises an exception instead, so that whoever put something up takes it down;
    those that follow wait for that. A shell's background process has SIGINT ignored: not by us."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number, frame):
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    for one in signals:
        signal.signal(one, end)


class ApiError(Exception):
    def __init__(self, status: int, body: dict):
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class Platform:
    def __init__(self, instance: str | None = None):
        # Eight characters at most: the name becomes part of control groups and namespaces.
        self.instance = instance or "t" + "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=5))
        self.data_dir = pathlib.Path("/var/lib") / f"space-{self.instance}"
        self.run_dir = pathlib.Path("/run") / f"space-{self.instance}"
        self.fault_file = pathlib.Path("/run") / f"space-{self.instance}.faults"
        self.owner_file = pathlib.Path("/run") / f"space-{self.instance}.test"
        self.owner = None
        self.http_port = free_port()
        self.tls_port = free_port()
        # Room for 1,000 slots per test installation, away from the default installation's 700,000.
        self.slot_uid_base = 1_000_000 + random.randrange(1000) * 1000
        self.key = ""
        self.up_options: list[str] = []  # more words for `space up`
        self.volume_mib = 0  # of a sparse file system of its own for the data, instead of what the host's disk has
        # Emulation works everywhere and needs no proof of 30 s; on a host whose KVM boots guests say "auto".
        self.accelerator = os.environ.get("SPACE_TEST_ACCELERATOR", "tcg")

    # -- life -------------------------------------------------------------------------------------------------

    def space(self, *args: str, check: bool = True, timeout: float = 300, **kwargs) -> subprocess.CompletedProcess:
        env = dict(os.environ, NO_COLOR="1", SPACE_RUN_DIR=str(self.run_dir), SPACE_DATA_DIR=str(self.data_dir))
        env.pop("SPACE_API_KEY", None)
        env.update(kwargs.pop("env", {}))
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(
            [str(PROGRAMS / "space"), *args], env=env, timeout=timeout, capture_output=True, text=True, **kwargs
        )
        if check and done.returncode != 0:
            raise AssertionError(f"space {' '.join(args)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def own(self) -> None:
        """Says to later runs what to remove when we are killed: who owns it holds a lock, which ends with the process."""
        if os.environ.get("SPACE_TEST_KEEP") == "1":
            return
        descriptor = os.open(self.owner_file, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps({"slot_uid_base": self.slot_uid_base}).encode())
        self.owner = descriptor

    @staticmethod
    def sweep() -> None:
        """Removes the installations of test runs that were killed."""
        for path in pathlib.Path("/run").glob("space-*.test"):
            with contextlib.suppress(OSError), open(path, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # somebody holds it: it is in use, or being removed
                text = file.read()
                if path.exists() and text:
                    left = Platform(path.name.removeprefix("space-").removesuffix(".test"))
                    left.slot_uid_base = json.loads(text)["slot_uid_base"]
                    left.destroy()

    def start(self) -> "Platform":
        self.sweep()
        self.own()
        self.fault_file.write_text("")
        self.fault_file.chmod(0o666)  # every program of the installation takes lines out of it
        if self.volume_mib:
            self.mount_volume()
        self.up()
        # The pool takes four fifths of what was free: with less, tests would fail one by one as "all workers are full".
        pool = os.statvfs(self.data_dir / "pool")
        room_gib = (pool.f_blocks * pool.f_frsize) >> 30
        assert room_gib >= 20, f"the tests need a disk pool of 20 GiB, there is room for {room_gib} GiB: free some disk"
        return self

    def mount_volume(self) -> None:
        """What is reserved for sandboxes is mostly never written, and a host need not have it all. The file has no name any
        more once it is mounted: with the mount it is gone, whoever ends that."""
        image = pathlib.Path("/var/tmp") / f"space-{self.instance}.img"
        try:
            image.touch(0o600)
            os.truncate(image, self.volume_mib << 20)
            subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
            self.data_dir.mkdir(0o755)
            subprocess.run(["mount", "-o", "loop", image, self.data_dir], check=True)
        finally:
            image.unlink(missing_ok=True)

    def up(self) -> None:
        self.space(
            "up",
            "--instance", self.instance,
            "--data-dir", str(self.data_dir),
            "--run-dir", str(self.run_dir),
            "--http-port", str(self.http_port),
            "--tls-port", str(self.tls_port),
            "--slot-uid-base", str(self.slot_uid_base),
            "--accelerator", self.accelerator,
            # Tests count machines: those that wait for nobody are on only where they are what is tested.
            *(() if "--warm-target" in self.up_options else ("--warm-target", "0")),
            *self.up_options,
            timeout=1500,
            env={"SPACE_FAULT_FILE": str(self.fault_file)},
        )
        self.key = (self.data_dir / "admin.key").read_text().strip()
        # The worker makes it by itself, by a boot that tests would count as a machine; creates are ten times as quick then.
        eventually(self.base_snapshot_settled, 180, "the base snapshot is made")

    def base_snapshot_settled(self) -> bool:
        """Made, or known to be impossible."""
        bases = self.worker("/node").get("base_snapshots", [])
        return any(one["usable"] or one["reason"] for one in bases)

    def worker(self, path: str, body: object = None) -> dict:
        """The worker's socket, as root (src/wire/worker.hpp): what it tells the control plane; with a body, what that asks."""
        connection = http.client.HTTPConnection("worker", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(str(self.run_dir / "worker" / "worker.sock"))
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            return json.loads(connection.getresponse().read() or "null")
        except (http.client.HTTPException, json.JSONDecodeError) as error:
            raise ConnectionError(f"half an answer: {error!r}") from None
        finally:
            connection.close()

    def down(self, purge: bool = False) -> None:
        self.space("down", *(["--purge"] if purge else []), timeout=180)

    def destroy(self) -> None:
        """Removes everything, also after a crash: never raises, so that one failure does not hide another."""
        with contextlib.suppress(Exception):
            self.down(purge=True)
        for pid in self.processes():  # a `space up` that nobody waits for any more, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for line in reversed(pathlib.Path("/proc/mounts").read_text().splitlines()):
            target = line.split()[1]
            if target.startswith((str(self.data_dir) + "/", str(self.run_dir) + "/")) or target in (
                str(self.data_dir), str(self.run_dir)
            ):
                subprocess.run(["umount", "-l", target], capture_output=True, check=False)
        for path in (self.data_dir, self.run_dir):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.fault_file, self.owner_file):
            path.unlink(missing_ok=True)
        if self.owner is not None:
            os.close(self.owner)
            self.owner = None

    # -- addresses --------------------------------------------------------------------------------------------

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def domain(self) -> str:
        return f"space.localhost:{self.tls_port}"

    @property
    def ca_file(self) -> str:
        return str(self.data_dir / "ca" / "ca.pem")

    # -- native API -------------------------------------------------------------------------------------------

    def api(self, method: str, path: str, body: object = None, key: str | None = None, timeout: float = 120,
            headers: dict | None = None):
        data = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        request = urllib.request.Request(self.http_url + path, data=data, method=method)
        request.add_header("Authorization", f"Bearer {self.key if key is None else key}")
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                parsed = json.loads(text)
            except ValueError:
                parsed = {"raw": text.decode(errors="replace")}
            raise ApiError(error.code, parsed) from None
        except (http.client.HTTPException, json.JSONDecodeError) as error:  # who answered has died over it
            raise ConnectionError(f"half an answer: {error!r}") from None

    # -- what the host holds ----------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """Programs of this installation and its machines: by user id (slots) or by our paths in the arguments."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                uid = int([l for l in (entry / "status").read_text().splitlines() if l.startswith("Uid:")][0].split()[1])
                ours = self.slot_uid_base <= uid < self.slot_uid_base + 1000 or f" --instance {self.instance} " in command
                if ours or f"{self.run_dir}/" in command or f"{self.data_dir}/" in command:
                    if entry.name != str(os.getpid()):
                        found[int(entry.name)] = command
        return found

    def service_pid(self, program: str) -> int:
        for pid, command in self.processes().items():
            if pathlib.Path(command.split(" ")[0]).name == program:
                return pid
        raise LookupError(f"{program} does not run")

    def all_run(self) -> bool:
        """Every program, as their supervisor sees it: none waits for its restart, each has said that it is ready."""
        try:
            seen = json.loads((self.run_dir / "supervisor.json").read_text())
        except json.JSONDecodeError:
            return False
        waiting = [one for one in seen["services"] if one["state"] not in ("running", "ended")]
        assert seen["state"] == "running" and not waiting, seen
        return True

    def vmm_pids(self) -> list[int]:
        """Machines only: a slot's gateway has a user of the same range, and comes and goes with the slot."""
        return [pid for pid, command in self.processes().items()
                if pathlib.Path(command.split(" ")[0]).name.startswith(("qemu-system", "firecracker"))]

    def zombies(self) -> list[int]:
        """Dead processes of slots that nobody has asked after."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if "\nState:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text():
                    found.append(pid)
        return found

    def holdings(self) -> dict[str, set[str]]:
        """Everything on the host that belongs to a single sandbox; equal before and after means no leak."""
        cgroups = set()
        for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu",
                     "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/blkio", "/sys/fs/cgroup/unified"):
            group = pathlib.Path(base) / self.instance
            if group.is_dir():
                cgroups |= {str(p) for p in group.iterdir() if p.is_dir()}
        pool = self.data_dir / "pool" / "sandboxes"
        journal = self.data_dir / "worker" / "sandboxes"
        return {
            "machines": {str(pid) for pid in self.vmm_pids()},
            "control groups": cgroups,
            "disks": {p.name for p in pool.iterdir()} if pool.is_dir() else set(),
            "journal": {p.name for p in journal.glob("*.json") if not self.journal_entry_is_history(p)},
            "rows": {s["id"] for s in self.api("GET", "/v1/sandboxes?limit=100")["sandboxes"]},
        }

    @staticmethod
    def journal_entry_is_history(entry: pathlib.Path) -> bool:
        """The worker keeps how its last sandboxes ended, a bounded number of them: history, nothing that is held."""
        try:
            return json.loads(entry.read_text())["phase"] == "ended"
        except FileNotFoundError:
            return True

    def slots(self) -> set[str]:
        """Slots come and go with the pool of prepared ones: compare counts, not names."""
        netns = self.run_dir / "hostd" / "netns"
        return {p.name for p in netns.iterdir()} if netns.is_dir() else set()

    def mounts(self) -> set[str]:
        lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
        return {l.split()[1] for l in lines if str(self.run_dir) in l or str(self.data_dir) in l}

    # -- faults -----------------------------------------------------------------------------------------------

    def arm(self, *lines: str) -> None:
        self.fault_file.write_text("".join(line + "\n" for line in lines))

    def armed(self) -> str:
        return self.fault_file.read_text().strip()


def eventually(check, seconds: float = 30, what: str = "the condition"):
    """Polls until `check()` is truthy and returns its value. For waiting on other processes, never for timing claims."""
    end = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < end:
        try:
            last = check()
            if last:
                return last
        except (AssertionError, ApiError, OSError, LookupError) as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come true within {seconds} s; last: {last!r}")
