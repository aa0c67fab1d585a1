"""Runs cases of the catalogue in a guest and collects what all sides saw; and the checks of live connections, which are
programs of their own rather than rows of a table."""

from __future__ import annotations

import copy
import json
import pathlib
import time

from catalogue import Case, Sides, judge, load

HERE = pathlib.Path(__file__).parent
POLICIES, CASES = load()
CREDENTIAL = "planted-credential-0123456789"


class Attacker:
    def __init__(self, guest, rig, witness, decisions, broker):
        self.guest, self.rig, self.witness, self.decisions, self.broker = guest, rig, witness, decisions, broker
        guest.sandbox.files.write("/tmp/attack.py", (HERE / "attack.py").read_text())
        guest.sandbox.files.write("/tmp/live.py", LIVE)
        self.sealed: dict = {}

    def credential(self, name: str) -> dict:
        if name not in self.sealed:
            status, self.sealed[name] = self.broker.call("POST", "/seal", {
                "credential": f"c-{name}", "version": 1, "value": CREDENTIAL,
                "binding": {"hosts": ["api.example", "api.github.com"], "ports": [443, 80], "header": "x-api-key",
                            "methods": ["GET", "POST"], "paths": ["/v1/**", "/user/**", "/repos/**"]}})
            assert status == 200, self.sealed[name]
        return {"sandbox": self.guest.id, "gateway_uid": 0, "name": name, "sealed": self.sealed[name]}

    def put(self, policy: dict, mutation: str = "", credentials: bool = True) -> dict:
        """Puts a policy in force; in a mutant's programs with one defence taken away (mutant/mutation.hpp)."""
        policy = copy.deepcopy(policy)
        name = "key"
        if mutation.startswith("broker."):
            name = f"mutant:{mutation}"
            policy = json.loads(json.dumps(policy).replace('{"credential": "key"}', json.dumps({"credential": name})))
        elif mutation:
            policy["rules"].append({"id": f"mutant:{mutation}", "hosts": ["mutant.example"], "action": "deny"})
        return self.guest.put_policy(policy, [self.credential(name)] if credentials else [])

    def run(self, cases: list[Case], mutation: str = "", seconds: float = 240) -> list[Case]:
        for name in dict.fromkeys(case.policy for case in cases):
            group = [case for case in cases if case.policy == name]
            before = len(self.decisions())
            since = time.time()
            self.put(POLICIES[name], mutation)
            self.guest.sandbox.files.write("/tmp/cases.json", json.dumps([case.for_guest() for case in group]))
            _, said, _ = self.guest.run("python3 -B /tmp/attack.py /tmp/cases.json", user="root", seconds=seconds)
            self._note(group, said)
            time.sleep(0.2)  # what is under way on the other sides
            records = self._records(group, before)
            seen, behind = self.rig.seen(since), self.witness.seen()
            sides = Sides(seen.bytes_with, seen.places_with, behind["frame"].__getitem__, behind["trap"].__getitem__, records,
                          self.witness.tracked())
            for case in group:
                judge(case, sides)
        return cases

    def _records(self, group, before: int) -> list[dict]:
        wanted = [case.data["audit"] for case in group if "audit" in case.data]
        end = time.monotonic() + 3
        while True:
            records = self.decisions()[before:]
            if time.monotonic() > end or all(any(all(r.get(k) == v or v == "some" and r.get(k) for k, v in w.items())
                                                 for r in records) for w in wanted):
                return records
            time.sleep(0.2)

    @staticmethod
    def _note(group, said: str) -> None:
        by_id = {case.id: case for case in group}
        for line in said.splitlines():
            if line.startswith("{"):
                result = json.loads(line)
                step = by_id[result["id"]].steps[result["number"]]
                assert step.token == result["token"]
                step.saw, step.seconds = result["saw"], result["seconds"]

    # -- live connections ---------------------------------------------------------------------------------------------

    def _stays(self, what: str) -> bool:
        """Starts /tmp/live.py in the guest; true when its connection stands."""
        # One that a mutation let live would write of its own end into the files of this one.
        self.guest.run("pkill -9 -f '^python3 -B /tmp/live[.]py'; rm -f /tmp/connected /tmp/cut", user="root")
        self.guest.run(f"setsid -f python3 -B /tmp/live.py {what} > /tmp/live.log 2>&1 < /dev/null", user="root")
        return self._exists("/tmp/connected", 15)

    def _exists(self, path: str, seconds: float) -> bool:
        code, _, _ = self.guest.run(f"for i in $(seq {int(seconds * 5)}); do test -e {path} && exit 0; sleep 0.2; done; exit 1",
                                    user="root", seconds=seconds + 20)
        return code == 0

    def live(self, mutation: str = "") -> list[str]:
        """S05, H34: a connection that stands is cut when a new policy has no rule for it."""
        self.put(POLICIES["base"])
        if not self._stays("echo"):
            return ["control: the connection does not stand"]
        less = copy.deepcopy(POLICIES["base"])
        less["rules"] = [rule for rule in less["rules"] if rule["id"] != "echo"]
        cut = self.put(less, mutation)["cut"]
        problems = [] if cut == 1 else [f"attack: {cut} connections were cut instead of 1"]
        return problems if self._exists("/tmp/cut", 3) else [*problems, "attack: the connection goes on"]

    def acknowledged(self, mutation: str = "") -> list[str]:
        """I9: once the new policy is acknowledged, it is in force for new connections."""
        self.put(POLICIES["base"])
        try_it = "curl -s --max-time 5 -o /dev/null http://allowed.example/; echo $?"
        if self.guest.run(try_it)[1].strip() != "0":
            return ["control: the allowed host is not reached"]
        self.put({"posture": "allowlist", "rules": [{"id": "other", "hosts": ["second.example"]}]}, mutation)
        said = self.guest.run(try_it)[1].strip()
        return [] if said != "0" else ["attack: the host that the policy no longer allows was reached"]

    def revoked(self, mutation: str = "") -> list[str]:
        """K17: a request under way is cut when the credential that it carries is taken away."""
        self.put(POLICIES["base"], mutation)
        if not self._stays("api"):
            return ["control: the request does not begin"]
        self.put(POLICIES["base"], mutation, credentials=False)
        return [] if self._exists("/tmp/cut", 3) else ["attack: the request goes on"]


# Holds one connection and says in files whether it stands: an echo that is asked again and again, or an endless answer.
LIVE = r'''
import socket, ssl, sys, time
if sys.argv[1] == "echo":
    peer = socket.create_connection(("echo.example", 7), 10)
    ask = lambda: peer.sendall(b"one")
else:
    context = ssl.create_default_context(); context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    peer = context.wrap_socket(socket.create_connection(("api.example", 443), 10), server_hostname="api.example")
    peer.sendall(b"GET /v1/endless HTTP/1.1\r\nHost: api.example\r\n\r\n")
    ask = lambda: None
peer.settimeout(10)
try:
    while True:
        ask()
        if not peer.recv(4096): raise OSError("closed")
        open("/tmp/connected", "w").close()
        time.sleep(0.1)
except OSError as e:
    open("/tmp/cut", "w").write(str(e))
'''
LIVE_CHECKS = {"live": "S05", "acknowledged": "I9", "revoked": "K17"}
