"""Policies and credentials as a user handles them, with `space`, on a sandbox that runs: what is stored is in force when the
command returns, and a credential is used by a guest in which nothing has ever seen it."""

import json
import mmap
import os
import pathlib
import subprocess
import time

import pytest
from platform_under_test import eventually

FIRST = "canary-4be1-first"
SECOND = "canary-4be1-second"
NEARER = "canary-4be1-nearer"
ECHOED = "canary-4be1-echoed"
POLICY = {"posture": "allowlist", "rules": [
    {"id": "secret", "hosts": ["allowed.example"], "http": {"paths": ["/secret/**"]}, "guest_auth": "strip",
     "inject": [{"credential": "rig-key"}]},
    {"id": "open", "hosts": ["allowed.example"], "http": {"paths": ["/open/**"]}}]}


class Box:
    """A sandbox made by the command line, and commands in it."""

    def __init__(self, platform, *words: str):
        self.platform = platform
        self.id = platform.space("sandbox", "create", "--timeout", "none", *words).stdout.strip()

    def sh(self, command: str) -> str:
        done = self.platform.space("exec", self.id, "--", "sh", "-c", command, check=False)
        return (done.stdout + done.stderr).strip()

    def get(self, path: str, *words: str, host: str = "allowed.example") -> str:
        """The status, 000 when there was no answer at all."""
        return self.sh(f"curl -sS --max-time 20 -o /tmp/body -w '%{{http_code}}' {' '.join(words)} https://{host}{path}")[:3]


@pytest.fixture(scope="module")
def box(platform, tmp_path_factory):
    put = platform.space("credential", "put", "rig-key", "--host", "allowed.example", "--path", "/secret/**",
                         "--header", "x-api-key", stdin=None, input=FIRST + "\n")
    assert put.stdout.strip() == "rig-key version 1 active"
    file = tmp_path_factory.mktemp("policy") / "policy.json"
    file.write_text(json.dumps(POLICY))
    made = Box(platform, "--policy", str(file))
    yield made
    platform.space("sandbox", "rm", made.id)


def carried(rig, since: float, path: str) -> list[str]:
    return [one["headers"].get("x-api-key", "") for one in rig.arrived(since, kind="http", path=path)]


def test_a_guest_uses_a_credential_that_it_never_sees(box, rig):
    since = time.time()
    assert box.get("/secret/a") == "200"
    assert carried(rig, since, "/secret/a") == [FIRST]
    # The guest's own key is taken off where ours goes in, and stays where it does not.
    assert box.get("/secret/b", "-H", "'x-api-key: mine'") == "200"
    assert carried(rig, since, "/secret/b") == [FIRST]
    assert box.get("/open/c", "-H", "'x-api-key: mine'") == "200"
    assert carried(rig, since, "/open/c") == ["mine"]
    assert box.get("/else") == "403"
    assert not carried(rig, since, "/else")


def test_show_and_explain_say_what_is_in_force(box, platform):
    shown = platform.space("policy", "show", box.id).stdout
    assert "secret" in shown and "rig-key" in shown and "allowlist" in shown, shown
    said = platform.space("policy", "explain", box.id, "https://allowed.example/secret/x").stdout
    assert "allowed" in said and "rule secret" in said and "rig-key" in said, said
    refused = platform.space("policy", "explain", box.id, "https://allowed.example/else", check=False)
    assert refused.returncode == 1 and "path_not_allowed" in refused.stdout, refused.stdout


def test_a_templates_credential_is_nearer_and_its_day_ends(box, platform, rig):
    put = platform.space("credential", "put", "rig-key", "--template", "base", "--host", "allowed.example", "--header", "x-api-key",
                         "--requests-per-day", "1", "--concurrent", "1", stdin=None, input=NEARER + "\n")
    try:
        assert f"in force on {box.id}" in put.stderr, put.stderr
        since = time.time()
        assert box.get("/secret/nearer") == "200"
        assert carried(rig, since, "/secret/nearer") == [NEARER]
        assert box.get("/secret/beyond") == "429"
        assert '"credential_budget"' in box.sh("cat /tmp/body")
        assert not carried(rig, since, "/secret/beyond")
    finally:
        platform.space("credential", "rm", "rig-key", "--template", "base")
    since = time.time()
    assert box.get("/secret/again") == "200"
    assert carried(rig, since, "/secret/again") == [FIRST]


def test_a_change_is_in_force_when_the_command_returns(box, platform, rig):
    since = time.time()
    assert box.get("/live", host="neighbour.example") == "000"
    platform.space("policy", "allow", box.id, "neighbour.example:GET:/live")
    assert box.get("/live", host="neighbour.example") == "200"
    assert rig.arrived(since, kind="http", host="neighbour.example", path="/live")
    # A level above narrows at once, and what it says holds over what the sandbox's own level says.
    level = {"posture": "open", "rules": [{"id": "never", "hosts": ["neighbour.example"], "action": "deny"}]}
    told = platform.space("policy", "set", "project", "--policy", "-", stdin=None, input=json.dumps(level))
    try:
        assert f"in force on {box.id}" in told.stderr, told.stderr
        since = time.time()
        assert box.get("/live", host="neighbour.example") == "000"
        assert box.get("/open/still") == "200"
        assert not rig.arrived(since, kind="http", host="neighbour.example")
        why = platform.space("policy", "explain", box.id, "https://neighbour.example/live", check=False).stdout
        assert "level project" in why and "rule never" in why, why
    finally:
        platform.space("policy", "rm", "project")
    assert box.get("/live", host="neighbour.example") == "200"
    versions = platform.space("policy", "versions", "project").stdout
    assert "version 2" in versions and "+ rule never" in versions, versions


def test_what_a_project_may_do_in_a_day_is_refused_beyond(box, platform, rig):
    level = {"posture": "open", "budgets": {"together": {"requests_per_day": 1}}}
    told = platform.space("policy", "set", "project", "--policy", "-", stdin=None, input=json.dumps(level))
    try:
        assert f"in force on {box.id}" in told.stderr, told.stderr
        assert box.get("/open/first-of-the-day") == "200"
        since = time.time()
        assert box.get("/open/beyond", "-D", "/tmp/head") == "429"
        assert '"project_budget"' in box.sh("cat /tmp/body")
        head = box.sh("cat /tmp/head").lower()
        assert "x-space-refusal: project_budget" in head and "retry-after: " in head, head
        assert not rig.arrived(since, kind="http", path="/open/beyond")
        shown = platform.space("policy", "show", box.id).stdout
        assert 'All sandboxes of the project together on a node: {"requests_per_day":1}' in shown, shown
        why = platform.space("policy", "explain", box.id, "https://allowed.example/open/x").stdout
        assert "all sandboxes of the project" in why and "requests_per_day" in why, why
    finally:
        platform.space("policy", "rm", "project")
    assert box.get("/open/without-it") == "200"


def test_watch_and_suggest_tell_what_was_denied(box, platform):
    box.sh("getent hosts wanted.example")
    eventually(lambda: "wanted.example" in platform.space("policy", "suggest", box.id).stdout, 10, "the denial is suggested")
    assert "--allow 'wanted.example'" in platform.space("policy", "suggest", box.id).stdout
    watched = platform.space("policy", "watch", box.id, "--count", "3").stdout
    assert len(watched.splitlines()) == 3, watched


def test_a_credential_that_came_back_is_quarantined_until_it_is_released(box, platform, rig):
    since = time.time()
    platform.space("credential", "put", "echo-key", "--host", "api.example", "--path", "/v1/**", "--header", "x-api-key",
                   stdin=None, input=ECHOED)
    rule = {"id": "echo", "hosts": ["api.example"], "http": {"paths": ["/v1/**"]}, "guest_auth": "strip", "inject": [{"credential": "echo-key"}]}
    policy = dict(POLICY, rules=[*POLICY["rules"], rule])
    platform.space("policy", "set", box.id, "--policy", "-", stdin=None, input=json.dumps(policy))
    state = lambda: next(one["state"] for one in platform.api("GET", "/v1/credentials")["credentials"] if one["name"] == "echo-key")
    assert box.get("/v1/quiet", host="api.example") == "200" and state() == "active", "the control: used, and not sent back"
    assert box.get("/v1/reflect/raw", host="api.example") == "200"
    assert "canary" not in box.sh("cat /tmp/body")
    eventually(lambda: state() == "quarantined", 15, "the installation has heard of it")
    assert box.get("/v1/after", host="api.example") == "503"
    assert box.get("/open/quarantined") == "200", "the control: other rules go on"
    assert not rig.arrived(since, kind="http", host="api.example", path="/v1/after")
    log = "".join(one.read_text() for one in (platform.data_dir / "worker" / "audit").glob("*.jsonl"))
    assert '"decision":"quarantined"' in log
    released = platform.space("credential", "release", "echo-key")
    assert "active" in released.stdout and f"in force on {box.id}" in released.stderr, released
    assert box.get("/v1/again", host="api.example") == "200"
    assert carried(rig, since, "/v1/again") == [ECHOED]


def test_rotation_grants_and_revocation_reach_the_sandbox_that_runs(box, platform, rig):
    since = time.time()
    platform.space("credential", "rotate", "rig-key", stdin=None, input=SECOND)
    assert box.get("/secret/rotated") == "200"
    assert carried(rig, since, "/secret/rotated") == [SECOND]
    platform.space("credential", "grant", "rig-key", "--to-sandbox", "i" + "0" * 20)
    assert box.get("/secret/granted-away") == "503"
    platform.space("credential", "grant", "rig-key", "--to-sandbox", box.id)
    assert box.get("/secret/granted") == "200"
    revoked = platform.space("credential", "revoke", "rig-key")
    assert f"in force on {box.id}" in revoked.stderr, revoked.stderr
    assert box.get("/secret/revoked") == "503"
    assert box.get("/open/revoked") == "200", "the control: other rules go on"
    assert not carried(rig, since, "/secret/revoked") and not carried(rig, since, "/secret/granted-away")
    assert "revoked" in platform.space("credential", "list").stdout


def test_the_value_is_nowhere(box, platform):
    """After all of the above: not in the guest, the logs, the database, an environment, a command line; and no program that
    ever held it can leave a core file."""
    guest = box.sh("grep -rlsE 'canar[y]-4be1' /home /tmp /etc /run /var /root /proc/*/environ /proc/*/cmdline; env | grep 'canar[y]'; echo done")
    assert guest == "done", guest
    for path in platform.data_dir.rglob("*"):
        inside = path.relative_to(platform.data_dir).parts[0]
        if inside in ("pool", "guest") or not path.is_file() or path.stat().st_size > 256 << 20:
            continue
        assert b"canary-4be1" not in path.read_bytes(), path
    for pid, _ in platform.processes().items():
        for name in ("environ", "cmdline"):
            try:
                assert b"canary-4be1" not in pathlib.Path(f"/proc/{pid}/{name}").read_bytes(), (pid, name)
            except (FileNotFoundError, ProcessLookupError):
                continue
    for program in ("space-broker", "space-api", "space-proxy"):
        limits = pathlib.Path(f"/proc/{platform.service_pid(program)}/limits").read_text()
        core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4] == "0", (program, core)


def found_in(folder: pathlib.Path, words: bytes) -> set[str]:
    """Which files hold them, holes left out: a disk is 4 GiB long."""
    found = set()
    for path in folder.iterdir():
        with path.open("rb") as file:
            at, size = 0, path.stat().st_size
            while at < size:
                try:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:
                    break  # a hole to the end
                hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as whole:
                    if whole.find(words, max(at - len(words), 0), hole) >= 0:
                        found.add(path.name)
                at = hole
    return found


def test_what_is_kept_of_its_memory_holds_no_value(box, platform):
    assert box.get("/open/control") == "200"
    box.sh("setsid -f env KEPT=control-''9d22-of-memory sleep 600 > /dev/null 2>&1 < /dev/null")
    platform.space("sandbox", "suspend", box.id)
    folder = platform.data_dir / "pool" / "suspended" / box.id
    assert "pages" in found_in(folder, b"control-9d22-of-memory"), "the control: what a process holds is found"
    assert found_in(folder, b"canary-4be1") == set()
    platform.space("sandbox", "resume", box.id)


def test_the_audit_log_is_whole_and_a_changed_line_is_found(box, platform, tmp_path):
    box.get("/open/audited")
    log = platform.data_dir / "worker" / "audit"
    eventually(lambda: "/open/audited" in "".join(p.read_text() for p in log.glob("*.jsonl")), 10, "it is on disk")
    seen = json.loads(platform.space("--json", "audit", "verify").stdout)
    assert seen["whole"], seen

    def confirmed() -> bool:
        kept = json.loads(platform.space("--json", "audit", "verify").stdout)["control_plane"]
        assert kept["asked"] and not kept["problem"], kept
        return kept["confirmed_through"] >= seen["last_sequence"]

    eventually(confirmed, 60, "the control plane has a signed checkpoint of these records")
    done = platform.space("audit", "verify")
    assert "whole" in done.stdout and "checkpoints confirm it up to number" in done.stdout, done.stdout
    exported = tmp_path / "export.jsonl"
    platform.space("audit", "export", "--file", str(exported), "--sandbox", box.id)
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    assert lines and all(line["sandbox"] == box.id for line in lines)
    assert any(line.get("path") == "/open/audited" for line in lines)
    # On a copy, which is whole, too.
    copy = tmp_path / "audit"
    subprocess.run(["cp", "-r", str(log), str(copy)], check=True)
    node = json.loads((platform.data_dir / "config.json").read_text())["node_name"]
    assert platform.space("audit", "verify", "--dir", str(copy), "--node", node, check=False).returncode == 0
    # Its end cut off: the chain is whole, the control plane knows better.
    last = sorted(copy.glob("*.jsonl"))[-1]
    text = last.read_text()
    last.write_text(text[:text.index("\n") + 1])
    assert platform.space("audit", "verify", "--dir", str(copy), check=False).returncode == 0
    cut = platform.space("audit", "verify", "--dir", str(copy), "--node", node, check=False)
    assert cut.returncode != 0 and "it ends with record" in cut.stderr, cut.stderr
    # One byte of one line.
    assert "/open/audited" in text
    last.write_text(text.replace("/open/audited", "/open/audites", 1))
    broken = platform.space("audit", "verify", "--dir", str(copy), check=False)
    assert broken.returncode != 0 and "was changed" in broken.stderr, broken.stderr
