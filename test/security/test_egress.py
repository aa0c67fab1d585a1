"""What root in a guest can reach through its gateway, seen from three sides: the guest, the servers, the audit log. Every
refusal stands beside a control that arrives by the allowed way, so that a dead network is no pass."""

import json
import subprocess
import time
import urllib.request
import zipfile

import pytest
from platform_under_test import eventually
from prometheus_client.parser import text_string_to_metric_families

ALLOWED = {"hosts": ["allowed.example"]}


def test_the_policy_of_the_create_is_in_force_from_the_start(guest):
    lines = guest.at_start.split("\n")
    assert lines[0].startswith("198.18.") and "none" in lines, guest.at_start


@pytest.fixture(autouse=True)
def policy(request, guest):
    if "from_the_start" not in request.node.name:
        guest.allow(ALLOWED)


def control(guest, rig):
    """The allowed way works at this moment, and arrives."""
    since = time.time()
    code, said, _ = guest.run("curl -sS --max-time 20 https://allowed.example/control")
    assert code == 0 and "hello from allowed.example" in said, said
    assert rig.arrived(since, kind="http", host="allowed.example", path="/control")


def test_an_allowed_name_is_reached_with_tools_as_they_are(guest, rig, decisions):
    control(guest, rig)
    since = time.time()
    code, said, _ = guest.run("curl -sS --max-time 20 http://allowed.example/plain")
    assert code == 0 and "hello" in said, said
    program = "import urllib.request; print(urllib.request.urlopen('https://allowed.example/python', timeout=20).read())"
    assert "hello" in guest.python(program)
    assert rig.arrived(since, kind="http", path="/plain", sni=None)
    assert rig.arrived(since, kind="http", path="/python", sni="allowed.example")
    eventually(lambda: decisions(decision="allowed", host="allowed.example"), 10, "the decision is in the audit log")


def publish(rig) -> None:
    """A package index with one wheel and a bare repository with one file, as any server of files has them."""
    files = rig.directory / "files"
    index = files / "simple" / "greeting"
    index.mkdir(parents=True)
    (index / "index.html").write_text('<a href="/files/greeting-1.0-py3-none-any.whl">greeting-1.0-py3-none-any.whl</a>')
    with zipfile.ZipFile(files / "greeting-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("greeting.py", 'TEXT = "hello from a wheel"\n')
        wheel.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr("greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("greeting-1.0.dist-info/RECORD", "")
    work = rig.directory / "work"
    git = ["git", "-c", "user.name=rig", "-c", "user.email=rig@allowed.example", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", str(work)], check=True)
    (work / "file").write_text("hello from a repository\n")
    for words in (["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, "-C", str(work), *words], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", str(work), str(files / "repository.git")], check=True)
    subprocess.run(["git", "-C", str(files / "repository.git"), "update-server-info"], check=True)


# With the variables that the agent sets for programs, and with none: then the system's own authorities must do.
@pytest.mark.parametrize("environment", ["", "env -i HOME=/home/user PATH=/usr/bin:/bin"])
def test_pip_and_git_work_as_they_are(guest, rig, environment):
    if not (rig.directory / "files").exists():
        publish(rig)
    guest.run("rm -rf /home/user/fetched /home/user/cloned")
    code, said, _ = guest.run(f"{environment} pip install --no-cache-dir --target /home/user/fetched "
                              "--index-url https://allowed.example/files/simple/ greeting")
    assert code == 0, said
    assert "hello from a wheel" in guest.run("cat /home/user/fetched/greeting.py")[1]
    code, said, _ = guest.run(f"{environment} git clone -q https://allowed.example/files/repository.git /home/user/cloned")
    assert code == 0, said
    assert "hello from a repository" in guest.run("cat /home/user/cloned/file")[1]
    code, said, _ = guest.run(f"{environment} git clone -q https://neighbour.example/files/repository.git /home/user/other")
    assert code == 128 and "neighbour.example" in said, said


def test_libraries_with_authorities_of_their_own_are_told_of_the_guests(guest):
    """Node, and what brings a bundle of its own: no such program is in the template, so what they read is looked at."""
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "GIT_SSL_CAINFO"):
        code, said, _ = guest.run(f'grep -c "BEGIN CERTIFICATE" "${name}"')
        assert code == 0 and int(said) > 1, (name, said)


def test_a_denied_name_does_not_exist_and_nobody_is_asked(guest, rig, decisions):
    since = time.time()
    code, said, took = guest.run("getent hosts secret-data.neighbour.example")
    assert code == 2, said
    code, said, _ = guest.run("curl -sS --max-time 20 https://neighbour.example/")
    assert code == 6, said  # curl: could not resolve
    assert took < 5
    control(guest, rig)
    assert not [q for q in rig.arrived(since, kind="dns") if "neighbour" in q["name"]]
    eventually(lambda: decisions(kind="dns", decision="denied", host="neighbour.example"), 10, "the denial is recorded")


def test_no_query_leaves_for_an_allowed_name_before_a_connection(guest, rig):
    guest.allow(ALLOWED, {"hosts": ["*.names.example"]})
    since = time.time()
    code, said, _ = guest.run("getent ahostsv4 data-in-a-name.names.example")
    assert code == 0 and said.startswith("198.18."), said
    control(guest, rig)
    assert not [q for q in rig.arrived(since, kind="dns") if "data-in-a-name" in q["name"]]


def test_another_tenant_of_the_same_address_by_host(guest, rig):
    since = time.time()
    code, said, _ = guest.run("curl -sS --max-time 20 -o /dev/null -w '%{http_code}' -H 'Host: neighbour.example' "
                              "https://allowed.example/host")
    assert said.strip() == "421", said
    control(guest, rig)
    assert not rig.arrived(since, kind="http", path="/host")


def test_another_tenant_of_the_same_address_by_sni(guest, rig):
    since = time.time()
    program = """
import socket, ssl
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
peer = socket.create_connection(("allowed.example", 443), 20)
try:
    tls = context.wrap_socket(peer, server_hostname="neighbour.example")
    tls.sendall(b"GET /sni HTTP/1.1\\r\\nHost: neighbour.example\\r\\n\\r\\n"); print("answer", tls.recv(100))
except OSError as e:
    print("refused", type(e).__name__)
"""
    assert guest.python(program).startswith("refused")
    control(guest, rig)
    assert not rig.arrived(since, kind="http", path="/sni")


def test_a_redirect_to_a_denied_host_goes_nowhere(guest, rig):
    guest.allow(ALLOWED, {"hosts": ["redirect.example"]})
    since = time.time()
    code, said, _ = guest.run("curl -sSL --max-time 20 https://redirect.example/")
    assert code == 6, said
    assert rig.arrived(since, kind="http", host="redirect.example"), "the control: the redirect itself arrives"
    assert not rig.arrived(since, kind="http", host="neighbour.example")


REFUSED_AT_ONCE = {
    "a literal address that a name leads to": ("203.0.113.10", 443),
    "the same by plain HTTP": ("203.0.113.10", 80),
    "another host by its address": ("203.0.113.20", 7),
    "the metadata service": ("169.254.169.254", 80),
    "a private address": ("10.1.2.3", 80),
    "the host side of the slot": ("192.0.2.1", 22),
}


@pytest.mark.parametrize("what", REFUSED_AT_ONCE)
def test_addresses_are_refused_at_once(guest, rig, what):
    address, port = REFUSED_AT_ONCE[what]
    since = time.time()
    program = f"""
import socket, time
start = time.time()
try:
    socket.create_connection(("{address}", {port}), 10); print("connected")
except OSError as e:
    print(type(e).__name__, time.time() - start)
"""
    said = guest.python(program)
    assert said.startswith("ConnectionRefusedError"), said
    assert float(said.split()[1]) < 2, said
    control(guest, rig)
    assert not rig.arrived(since, kind="echo")
    assert not [r for r in rig.arrived(since, kind="http") if r["path"] != "/control"]


def test_udp_goes_nowhere_but_to_the_dns_front(guest, rig):
    since = time.time()
    program = """
import socket
def ask(host, port, name):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
    q = b"\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0" + b"".join(bytes([len(l)]) + l for l in name.split(b".")) + b"\\0\\0\\1\\0\\1"
    try:
        s.connect((host, port)); s.send(q); return s.recv(512)[3] & 15
    except OSError as e:
        return type(e).__name__
print(ask("203.0.113.53", 53, b"neighbour.example"), ask("203.0.113.53", 53, b"allowed.example"),
      ask("203.0.113.53", 5353, b"allowed.example"), ask("203.0.113.10", 443, b"allowed.example"))
"""
    denied, allowed, elsewhere, quic = guest.python(program).split()
    # Port 53 of any address is our front: it answers for the allowed name and denies the other.
    assert (denied, allowed) == ("3", "0")
    assert not elsewhere.isdigit() and not quic.isdigit(), (elsewhere, quic)
    control(guest, rig)
    assert not [q for q in rig.arrived(since, kind="dns") if q["name"] != "allowed.example"]


def test_a_public_name_with_a_private_address_is_not_dialled(guest, rig):
    guest.allow(ALLOWED, {"hosts": ["inside.example"]})
    code, said, _ = guest.run("curl -sS --max-time 20 -o /dev/null -w '%{http_code}' http://inside.example/")
    assert said.strip() in ("403", "502"), said
    control(guest, rig)


def test_a_policy_that_is_taken_away_ends_the_way_at_once(guest, rig):
    guest.allow(ALLOWED, {"hosts": ["echo.example"], "ports": [7], "protocol": "tcp"})
    program = """
import socket, subprocess, time
peer = socket.create_connection(("echo.example", 7), 10); peer.settimeout(10)
peer.sendall(b"one"); assert peer.recv(10) == b"one"; print("echo", flush=True)
open("/tmp/connected", "w").close()
try:
    while True:
        time.sleep(0.1); peer.sendall(b"two")
        if not peer.recv(10): raise OSError("closed")
except OSError as e:
    open("/tmp/cut", "w").write(str(e))
"""
    guest.sandbox.files.write("/tmp/live.py", program)
    guest.run("rm -f /tmp/connected /tmp/cut", user="root")
    # Not as a background command of the client: an abandoned stream of it, collected at the wrong moment, waits for itself.
    guest.run("setsid -f python3 /tmp/live.py > /tmp/live.log 2>&1 < /dev/null", user="root")
    eventually(lambda: guest.run("test -e /tmp/connected")[0] == 0, 20, "the connection stands")
    assert guest.allow(ALLOWED)["cut"] == 1
    eventually(lambda: guest.run("test -e /tmp/cut")[0] == 0, 5, "the connection is cut")
    control(guest, rig)


def test_a_gateway_that_dies_is_replaced_and_the_guest_trusts_the_new_one(platform, guest, rig):
    import os
    import signal

    def gateways():
        return [pid for pid, command in platform.processes().items() if command.startswith("space-gateway")]

    control(guest, rig)
    for pid in gateways():
        os.kill(pid, signal.SIGKILL)

    def works():
        code, said, _ = guest.run("curl -sS --max-time 5 https://allowed.example/again")
        assert code == 0, said
        return True

    eventually(works, 20, "the network is back")
    code, said, _ = guest.run("curl -sS --max-time 5 https://neighbour.example/")
    assert code == 6, said


def test_the_worker_restarts_and_the_policy_holds(platform, guest, rig, worker):
    import os
    import signal

    control(guest, rig)
    os.kill(platform.service_pid("space-worker"), signal.SIGKILL)
    eventually(lambda: worker.call("GET", f"/sandboxes/{guest.id}")[0] == 200, 60, "the worker is back")
    control(guest, rig)
    code, said, _ = guest.run("curl -sS --max-time 5 https://neighbour.example/")
    assert code == 6, said
    eventually(lambda: guest.allow(ALLOWED), 20, "a policy is accepted again")


def test_a_policy_that_makes_no_sense_changes_nothing(guest, rig, worker):
    status, answer = worker.call("PUT", f"/sandboxes/{guest.id}/policy", {
        "epoch": guest.epoch, "policy": {"generation": guest.generation + 1, "levels": [
            {"level": "sandbox", "policy": {"posture": "allowlist", "rules": [{"id": "x", "hosts": ["*.*"]}]}}]}})
    assert status == 400 and answer["message"], answer
    control(guest, rig)


def test_a_credential_goes_along_and_the_guest_never_sees_it(platform, guest, rig, broker, decisions):
    value = "key-0123456789-planted"
    status, sealed = broker.call("POST", "/seal", {
        "credential": "c1", "version": 1, "value": value,
        "binding": {"hosts": ["allowed.example"], "header": "x-api-key", "paths": ["/v1/**"]}})
    assert status == 200, sealed
    assert value not in json.dumps(sealed)
    guest.allow(dict(ALLOWED, inject=[{"credential": "llm-key"}]),
                credentials=[{"sandbox": guest.id, "gateway_uid": 0, "name": "llm-key", "sealed": sealed}])
    since = time.time()
    code, said, _ = guest.run("curl -sS --max-time 20 https://allowed.example/v1/messages")
    assert code == 0 and "hello" in said, said
    arrived = rig.arrived(since, kind="http", path="/v1/messages")
    assert [a["headers"].get("x-api-key") for a in arrived] == [value]
    # Outside of what it is bound to nothing is sent, rather than sent without it.
    code, said, _ = guest.run("curl -sS --max-time 20 -o /dev/null -w '%{http_code}' https://allowed.example/elsewhere")
    assert said.strip() in ("403", "503"), said
    assert not rig.arrived(since, kind="http", path="/elsewhere")
    code, said, _ = guest.run("cat /proc/*/environ /proc/*/cmdline 2>/dev/null; env", user="root")
    assert value not in said
    eventually(lambda: decisions(path="/v1/messages", decision="allowed"), 10, "the use is recorded")
    for path in [*(platform.data_dir / "worker").rglob("*.json*"), *(platform.data_dir / "log").glob("*.jsonl")]:
        assert value not in path.read_text(errors="replace"), path


def test_decisions_can_be_followed_live(guest, worker):
    with worker.follow(f"/sandboxes/{guest.id}/decisions") as seen:
        guest.run("getent hosts followed.example")
        assert seen(b'"host":"followed.example"', 10)


def test_the_audit_log_is_whole_and_holds_no_query(platform, guest, rig, decisions):
    guest.run("curl -sS --max-time 20 'https://allowed.example/q?secret=s3cr3t-value'")
    eventually(lambda: decisions(decision="allowed", path="/q"), 10, "the request is recorded")
    texts = [p.read_text() for p in sorted((platform.data_dir / "worker" / "audit").glob("audit-*.jsonl"))]
    assert "s3cr3t-value" not in "".join(texts)
    # The chain: each line names the hash of the one before.
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    assert len(lines) > 3
    for before, after in zip(lines, lines[1:]):
        assert after["prev"] == before["hash"] and after["seq"] == before["seq"] + 1


def scraped(platform):
    """{(name, labels without the node): value}, through Prometheus' own parser."""
    request = urllib.request.Request(platform.http_url + "/metrics", headers={"Authorization": f"Bearer {platform.key}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "node"}
            key = (sample.name, tuple(sorted(labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return text, found


def test_metrics_count_what_passed_and_name_nobody(platform, guest, rig):
    _, before = scraped(platform)
    control(guest, rig)
    code, said, _ = guest.run("getent hosts metrics.neighbour.example")
    assert code == 2, said
    guest.run("bash -c 'echo x > /dev/udp/224.0.0.251/5353'")  # to many at once: its slot's guard drops it

    def more(name, **labels):
        def count(of):
            return sum(value for (its, pairs), value in of.items() if its == name and labels.items() <= dict(pairs).items())

        return count(scraped(platform)[1]) > count(before)

    # What leaves no record comes from the gateway once a second.
    for name, labels in (("space_egress_flows_total", {"decision": "allowed", "posture": "allowlist", "class": "http"}),
                         ("space_egress_requests_total", {"decision": "allowed", "status": "2xx"}),
                         ("space_egress_bytes_total", {"direction": "down"}),
                         ("space_dns_queries_total", {"decision": "allowed"}),
                         ("space_dns_queries_total", {"decision": "denied"}),
                         ("space_tls_handshakes_total", {"result": "ok"}),
                         ("space_decision_seconds_count", {}),
                         ("space_upstream_connect_seconds_count", {}),
                         ("space_guard_drops_total", {"rule": "receiver"})):
        eventually(lambda name=name, labels=labels: more(name, **labels), 20, f"{name} {labels} grows")
    # One of this worker's own life: a test before may have killed the one that started ours.
    made = platform.api("POST", "/v1/sandboxes?wait=120", {"timeout_s": 60})["sandbox"]["id"]
    platform.api("DELETE", f"/v1/sandboxes/{made}?wait=60")
    text, now = scraped(platform)
    assert now[("space_node_up", ())] == 1 and now[("space_sandboxes", (("state", "running"),))] >= 1
    assert now[("space_policy_apply_seconds_count", (("result", "ok"),))] >= 1
    assert all(now[(f"space_{one}_start_time_seconds", ())] > 0 for one in ("worker", "api"))
    assert now[("space_audit_waiting_records", ())] >= 0
    assert any(name == "space_sandbox_start_seconds_count" and value >= 1 for (name, _), value in now.items())
    assert now[("space_sandbox_ends_total", (("cause", "deleted"),))] >= 1
    for secret in (guest.id, "allowed.example", "neighbour", platform.key):
        assert secret not in text, secret
