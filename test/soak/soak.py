#!/usr/bin/env python3
"""Sandboxes that cycle through every state the API offers, for minutes, while programs die: every write is verified.

  sudo ./dev soak                     30 minutes, 20 sandboxes
  sudo ./dev soak --seconds 120 --sandboxes 6 --seed 7

Each lane owns one sandbox at a time and does a random thing to it: writes a line (a number that never comes twice),
reads all lines back, pauses, suspends, resumes, lets a command wake it, forks it, takes a snapshot and goes on from
that, ends it and begins anew. A line whose command was answered must be there for ever, in order. One whose answer was
lost may come at any time, since its command may stand before a machine that is stopped, but only once; one whose command
was refused must never come. A process that was started in the sandbox's first minute must be the same
process for all its life, so memory is verified as well as the disk.

Meanwhile one thread kills programs of the platform (none of which may cost a sandbox anything) and, now and then, a
machine (which costs that sandbox, if it ran, and no other).

Ends with 1 and what was wrong. The seed decides what is done; what runs beside it does not repeat exactly.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import threading
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))
from platform_under_test import ApiError, Platform, end_politely, eventually  # noqa: E402

PROGRAMS = ["space-api", "space-controller", "space-worker", "space-hostd", "space-proxy", "postgres"]
VERBS = {"pause": "paused", "suspend": "suspended", "resume": "running"}
BETWEEN = {"pausing", "resuming", "suspending", "restoring", "creating", "deleting"}
PATIENCE = 180  # for one step of a lane, restarts of programs included


class Wrong(Exception):
    """The platform broke a promise."""


class Lost(Exception):
    """The sandbox is gone."""

    def __init__(self, row):
        super().__init__(f"{row.get('state')}: {row.get('cause') or row.get('end', '')}")
        self.row = row


class Soak:
    def __init__(self, platform, seed):
        self.platform = platform
        self.seed = seed
        self.end = threading.Event()
        self.wrongs = []
        self.counts = {}
        self.lock = threading.Lock()
        self.offered = set()
        self.condemned = {}  # sandbox → when a machine of it was killed by us

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + n

    def wrong(self, what):
        with self.lock:
            self.wrongs.append(what)
        print(f"WRONG: {what}", flush=True)
        self.end.set()

    # -- the API, which may be away for a while ---------------------------------------------------------------

    def call(self, method, path, body=None, timeout=90, headers=None):
        """An answer, or the error that the platform gave; OSError when nobody knows what became of it."""
        try:
            return self.platform.api(method, path, body, timeout=timeout, headers=headers)
        except ApiError as error:
            if error.status in (500, 502, 503, 504):
                raise OSError(f"{error.status}") from None
            raise

    def row(self, sandbox):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                row = self.call("GET", f"/v1/sandboxes/{sandbox}", timeout=20)
            except ApiError as error:
                if error.status == 404:
                    raise Wrong(f"{sandbox} is unknown, which not even an ended one may be") from None
                raise
            except OSError:
                if time.monotonic() > deadline:
                    raise Wrong(f"the API did not come back within {PATIENCE} s") from None
                time.sleep(0.3)
                continue
            if row["state"] in ("deleted", "failed"):
                raise Lost(row)
            if row["state"] not in BETWEEN:
                return row
            if time.monotonic() > deadline:
                raise Wrong(f"{sandbox} has been {row['state']} for {PATIENCE} s")
            time.sleep(0.2)

    def run(self, sandbox, *argv):
        """What the command wrote; OSError when its answer was lost."""
        try:
            done = self.call("POST", f"/v1/sandboxes/{sandbox}/commands?wait=60", {"argv": list(argv)})
        except ApiError as error:
            # Paused, on its way, or over its limits: it did not begin.
            if error.status in (409, 429):
                raise BlockingIOError(str(error)) from None
            if error.status in (404, 410):
                raise OSError("gone, perhaps") from None
            raise
        if done.get("exit_code") is None:
            raise OSError("no end")
        if done["exit_code"] != 0:
            raise Wrong(f"{argv} in {sandbox} ended with {done['exit_code']}: {done.get('stderr', '')[-200:]}")
        return done.get("stdout", "")

    def find_out_what_is_offered(self):
        """By trying: a verb that answers like an unknown path is not offered, and said so."""
        probe = self.create()
        for verb in VERBS:
            try:
                self.call("POST", f"/v1/sandboxes/{probe}/{verb}?wait=60", {} if verb == "resume" else None)
                self.offered.add(verb)
                self.row(probe)
            except ApiError as error:
                print(f"NOT OFFERED: {verb} ({error.status} {str(error.body)[:120]})", flush=True)
        for what, path in (("fork", f"/v1/sandboxes/{probe}/fork"), ("snapshot", f"/v1/sandboxes/{probe}/snapshots?wait=60")):
            try:
                made = self.call("POST", path, {})
                self.offered.add(what)
                for one in made.get("forks", []):
                    if "sandbox" in one:
                        self.delete(one["sandbox"]["id"])
                if "snapshot" in made:
                    self.call("DELETE", f"/v1/snapshots/{made['snapshot']['id']}")
            except ApiError as error:
                print(f"NOT OFFERED: {what} ({error.status} {str(error.body)[:120]})", flush=True)
        self.delete(probe)

    def create(self, body=None):
        deadline = time.monotonic() + PATIENCE
        # The same key until its answer came: what was made by a create whose answer was lost holds room that others need.
        key, tries = uuid.uuid4().hex, 0
        while time.monotonic() < deadline:
            try:
                made = self.call("POST", "/v1/sandboxes?wait=120", {"timeout_s": 7200, **(body or {})}, timeout=150,
                                 headers={"Idempotency-Key": key})
                sandbox = made["sandbox"]["id"]
                if self.row(sandbox)["state"] == "running":
                    return sandbox
                raise Lost(made["sandbox"])
            except OSError:
                tries += 1
                if tries == 5:  # a create that a fault cut short may have failed for good
                    key, tries = uuid.uuid4().hex, 0
            except Lost:
                key, tries = uuid.uuid4().hex, 0
            except ApiError as error:
                if error.status not in (409, 429):
                    raise
                key, tries = uuid.uuid4().hex, 0
            time.sleep(0.5)
        raise Wrong(f"no sandbox could be made within {PATIENCE} s")

    def delete(self, sandbox):
        deadline, last, row = time.monotonic() + PATIENCE, "", {}
        while time.monotonic() < deadline:
            try:
                try:
                    last = json.dumps(self.call("DELETE", f"/v1/sandboxes/{sandbox}?wait=30"))[:300]
                except ApiError as error:  # it may have ended already, with its machine
                    last = str(error)[:300]
                row = self.row(sandbox)
                time.sleep(0.3)
            except Lost as lost:
                if lost.row["state"] == "failed":  # it did not wait for us
                    self.check_loss(sandbox, lost)
                return
            except (OSError, ApiError) as error:
                last = str(error)[:300]
                time.sleep(0.3)
        raise Wrong(f"{sandbox} could not be deleted within {PATIENCE} s; last answer {last}; row {json.dumps(row)[:500]}")

    # -- faults -----------------------------------------------------------------------------------------------

    def faults(self, rng):
        while not self.end.wait(rng.uniform(4, 15)):
            what = rng.choice(PROGRAMS + ["machine"])
            try:
                if what == "machine":
                    self.kill_a_machine(rng)
                    continue
                pid = (int((self.platform.data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
                       if what == "postgres" else self.platform.service_pid(what))
                os.kill(pid, signal.SIGKILL)
                self.count(f"killed {what}")
                print(f"{time.strftime('%H:%M:%S')} killed {what}", flush=True)
            except (LookupError, OSError, ValueError):
                continue  # it is dead already

    def kill_a_machine(self, rng):
        here = self.platform.worker("/sandboxes")
        machines = [one for one in here.get("sandboxes", here) if one.get("vmm_pid")]
        if not machines:
            return
        one = rng.choice(machines)
        with self.lock:
            self.condemned[one["sandbox"]] = time.monotonic()
        os.kill(one["vmm_pid"], signal.SIGKILL)
        self.count("killed machine")
        print(f"killed the machine of {one['sandbox']}", flush=True)


class Lane:
    def __init__(self, soak, number):
        self.soak = soak
        self.number = number
        self.rng = random.Random(f"{soak.seed}-{number}")
        self.next = 0
        self.sandbox = None
        self.lines = []  # that are certain, in order
        self.doubt = set()  # whose answers were lost, and that were not seen yet
        self.unseen = set()  # of those, which a read since then did not show
        self.refused = set()
        self.history = []  # what was done and what came of it, for whoever has to find out why
        self.process = ""

    def begin(self, body=None):
        self.sandbox = self.soak.create(body)
        if body is None:
            self.lines, self.process = [], ""
            self.doubt, self.unseen, self.refused = set(), set(), set()
        self.soak.count("created")

    def note(self, what):
        """When, and what: the last of these are printed with a fault."""
        self.history.append(f"{time.strftime('%H:%M:%S')} {self.sandbox[-5:]} {what}")

    def write(self):
        number = f"{self.number}-{self.next}"
        self.next += 1
        try:
            self.soak.run(self.sandbox, "/bin/sh", "-c", f"echo {number} >> /var/tmp/lines && sync")
            self.lines.append(number)
            self.note(f"{number} written")
            self.soak.count("writes")
        except BlockingIOError as refused:
            self.refused.add(number)
            self.note(f"{number} refused: {refused}")
        except OSError as lost:
            self.doubt.add(number)
            self.note(f"{number} in doubt: {lost}")
            self.soak.count("writes in doubt")

    def verify(self):
        try:
            said = self.soak.run(self.sandbox, "/bin/sh", "-c", "cat /var/tmp/lines 2>/dev/null; true")
            if not self.process:
                self.process = self.soak.run(self.sandbox, "/bin/sh", "-c",
                                             "sleep 1000000 >/dev/null 2>&1 & echo $! $(cut -d' ' -f22 /proc/$!/stat)").strip()
            pid, begun = self.process.split()
            same = self.soak.run(self.sandbox, "/bin/sh", "-c", f"cut -d' ' -f22 /proc/{pid}/stat 2>/dev/null; true").strip()
        except OSError:
            return  # BlockingIOError too: asked again later
        if same != begun:
            raise Wrong(f"{self.sandbox}: process {pid}, begun at {begun}, is now {same or 'gone'}")
        found = said.split()
        seen = f"found {found[-8:]}, certain {self.lines[-8:]}, in doubt {sorted(self.doubt)}"
        certain = [number for number in found if number not in self.doubt]
        for what, numbers in (("twice", {number for number in found if found.count(number) > 1}),
                              ("though they were refused", self.refused.intersection(found)),
                              ("that nobody wrote", set(certain) - set(self.lines) - self.refused)):
            if numbers:
                raise Wrong(f"{self.sandbox}: lines {what}: {sorted(numbers)}; {seen}")
        if certain != self.lines:
            raise Wrong(f"{self.sandbox}: lines that were answered are missing or in another order; {seen}")
        late = self.unseen.intersection(found)
        if late:
            self.soak.count("came late", len(late))
            self.note(f"late: {sorted(late)}")
        self.lines = found  # what came of those in doubt is certain now
        self.doubt.difference_update(found)
        self.unseen = set(self.doubt)
        self.note(f"verified up to {found[-1] if found else 'nothing'}")
        self.soak.count("verified")

    def change(self, verb):
        row = self.soak.row(self.sandbox)
        if (verb == "resume") == (row["state"] == "running") or (verb == "pause" and row["state"] != "running"):
            return
        try:
            self.soak.call("POST", f"/v1/sandboxes/{self.sandbox}/{verb}?wait=60", {} if verb == "resume" else None)
        except ApiError as error:
            if error.status not in (409, 429):
                raise Wrong(f"{verb} of {self.sandbox} ({row['state']}): {error}") from None
        except OSError:
            pass
        now = self.soak.row(self.sandbox)["state"]
        if now not in (row["state"], VERBS[verb]):
            raise Wrong(f"{self.sandbox} was {row['state']}, was told to {verb}, and is {now}")
        self.note(f"{verb}: {row['state']} → {now}")
        if now == VERBS[verb]:
            self.soak.count(f"{verb}")

    def fork(self):
        if self.soak.row(self.sandbox)["state"] != "running":
            return
        try:
            made = self.soak.call("POST", f"/v1/sandboxes/{self.sandbox}/fork", {"count": 1})
        except (ApiError, OSError):
            return
        for one in made["forks"]:
            if "sandbox" not in one:
                continue
            child = Lane(self.soak, self.number)
            child.sandbox, child.process = one["sandbox"]["id"], self.process
            child.lines, child.doubt, child.refused = list(self.lines), set(self.doubt), set(self.refused)
            try:
                child.verify()
                self.soak.count("forked")
                self.soak.delete(child.sandbox)
            except Lost as lost:
                self.soak.check_loss(child.sandbox, lost)

    def snapshot(self):
        """Goes on from a snapshot instead of from what it is."""
        if self.soak.row(self.sandbox)["state"] != "running":
            return
        try:
            made = self.soak.call("POST", f"/v1/sandboxes/{self.sandbox}/snapshots?wait=60", {})
            snapshot = made["snapshot"]["id"]
        except (ApiError, OSError, KeyError):
            return
        old = self.sandbox
        self.begin({"snapshot": snapshot})
        self.verify()
        self.soak.delete(old)
        try:
            self.soak.call("DELETE", f"/v1/snapshots/{snapshot}")
        except (ApiError, OSError):
            pass
        self.soak.count("went on from a snapshot")

    def step(self):
        done = self.soak.row(self.sandbox)
        ways = ["write"] * 6 + ["verify"] * 3 + ["anew"]
        ways += [verb for verb in VERBS if verb in self.soak.offered for _ in range(2)]
        ways += [what for what in ("fork", "snapshot") if what in self.soak.offered]
        way = self.rng.choice(ways)
        if done["state"] == "paused" and way in ("write", "verify"):
            way = "resume"  # a paused one runs nothing
        if way in VERBS:
            self.change(way)
        elif way == "anew":
            self.verify()
            self.soak.delete(self.sandbox)
            self.begin()
        else:
            getattr(self, way)()

    def live(self):
        try:
            self.begin()
            while not self.soak.end.is_set():
                try:
                    self.step()
                except Lost as lost:
                    self.soak.check_loss(self.sandbox, lost)
                    self.begin()
            self.finish()
        except Lost as lost:
            self.soak.check_loss(self.sandbox, lost)
        except Wrong as wrong:
            self.soak.wrong(f"lane {self.number}: {wrong}\n    " + "\n    ".join(self.history[-30:]))
        except Exception as error:  # of ours
            self.soak.wrong(f"lane {self.number}: {type(error).__name__}: {error}")

    def finish(self):
        """With the faults over, everything must be there."""
        verified = self.soak.counts.get("verified", 0)
        for _ in range(60):
            if self.soak.row(self.sandbox)["state"] == "paused":
                self.change("resume")
            self.verify()
            if self.soak.counts.get("verified", 0) > verified:
                break
            time.sleep(1)
        else:
            raise Wrong(f"{self.sandbox} could not be read at the end")
        self.soak.delete(self.sandbox)


def check_loss(soak, sandbox, lost):
    with soak.lock:
        ours = sandbox in soak.condemned
    if not ours:
        raise Wrong(f"{sandbox} was lost, and no machine of it was killed: {json.dumps(lost.row)[:600]}")
    soak.count("lost with its killed machine")


Soak.check_loss = check_loss


def keep_logs(platform):
    """What the programs said, before the installation is removed with it."""
    target = ROOT / "build" / "logs" / "soak"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(platform.data_dir / "log", target, dirs_exist_ok=True)
    print(f"logs of the platform: {target}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=1800)
    parser.add_argument("--sandboxes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the soak starts machines: run it as root")
    print(f"seed {given.seed}: {given.sandboxes} sandboxes, {given.seconds} s", flush=True)
    platform = Platform()
    # Each lane holds one sandbox, for moments two with their snapshot; most of a disk of 4 GiB is never written.
    most = 2 * given.sandboxes + 4
    platform.volume_mib = 3 * 5 * 1024 * most
    platform.up_options = ["--memory-mib-max", str(1024 * most), "--vcpus-max", str(most), "--slots-max", str(most + 12),
                           "--pool-mib-max", str(2 * 5 * 1024 * most)]
    failed = 1
    end_politely()
    try:
        platform.start()
        soak = Soak(platform, given.seed)
        soak.find_out_what_is_offered()
        before = platform.holdings()
        lanes = [Lane(soak, number) for number in range(given.sandboxes)]
        threads = [threading.Thread(target=lane.live, daemon=True) for lane in lanes]
        killer = threading.Thread(target=soak.faults, args=(random.Random(given.seed),), daemon=True)
        for thread in [*threads, killer]:
            thread.start()
        soak.end.wait(given.seconds)
        soak.end.set()
        killer.join(60)
        deadline = time.monotonic() + 2 * PATIENCE
        for lane, thread in zip(lanes, threads):
            thread.join(max(1, deadline - time.monotonic()))
            if thread.is_alive():
                soak.wrong(f"lane {lane.number} hangs with {lane.sandbox}")
        if killer.is_alive() or not any(what.startswith("killed") for what in soak.counts):
            soak.wrong("nothing was killed, or who kills hangs")
        if not soak.wrongs:
            eventually(platform.all_run, 60, "every program runs again")
            for row in platform.api("GET", "/v1/sandboxes?limit=100")["sandboxes"]:
                soak.delete(row["id"])  # of creates whose answers were lost
            def nothing_left():
                now = platform.holdings()
                return all(not (now[kind] - before[kind]) for kind in now if kind != "control groups")
            try:
                eventually(nothing_left, 90, "nothing is left on the host")
            except AssertionError as error:
                soak.wrong(f"{error}: {platform.holdings()}")
        print("  ".join(f"{what}: {n}" for what, n in sorted(soak.counts.items())))
        if soak.counts.get("verified", 0) == 0 or soak.counts.get("writes", 0) == 0:
            soak.wrong("nothing was written and verified")
        failed = len(soak.wrongs)
        for what in soak.wrongs:
            print(f"WRONG (seed {given.seed}): {what}")
        if failed:
            keep_logs(platform)
    finally:
        platform.destroy()
    print(f"{0 if failed else 1} passed, {1 if failed else 0} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
