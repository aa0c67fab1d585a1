"""Every sandbox is offline: root inside sends whatever it likes, and nothing leaves its slot.

The program in the guest uses raw frames, so that neither the guest's routing nor its firewall helps or hinders. The
control is the agent's own channel: the same interface carries the allowed conversation at the same time.
"""

import json
import subprocess

from platform_under_test import eventually

ATTACK = r'''
import json, os, socket, struct, subprocess, time
report = {}
def tcp(host, port):
    s = socket.socket(); s.settimeout(5); start = time.time()
    try:
        s.connect((host, port)); return "connected"
    except Exception as e:
        return type(e).__name__ + " %.1f" % (time.time() - start)
for name, (host, port) in {"internet": ("203.0.113.9", 443), "metadata": ("169.254.169.254", 80), "gateway ssh": ("192.0.2.1", 22),
                           "gateway agent": ("192.0.2.1", 49983), "private": ("198.51.100.7", 80), "loop": ("198.18.0.7", 80)}.items():
    report[name] = tcp(host, port)
def udp(host, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3)
    try:
        s.connect((host, port)); s.send(b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1"); return "answer %d" % len(s.recv(512))
    except Exception as e:
        return type(e).__name__
report["dns"] = udp("192.0.2.1", 53); report["dns elsewhere"] = udp("203.0.113.53", 53); report["ntp"] = udp("203.0.113.9", 123)
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); raw.bind(("eth0", 0))
GW, ME, OTHER = bytes.fromhex("020000000001"), bytes.fromhex("020000000002"), bytes.fromhex("0200000000ff")
def ip(src, dst, proto=17, payload=b"\x30\x39\x00\x35\x00\x10\0\0spacespc"):
    def csum(b):
        s = sum(struct.unpack("!%dH" % (len(b) // 2), b)); s = (s >> 16) + (s & 0xffff); return ~(s + (s >> 16)) & 0xffff
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 7, 0, 64, proto, 0, socket.inet_aton(src), socket.inet_aton(dst))
    return head[:10] + struct.pack("!H", csum(head)) + head[12:] + payload
frames = {
    "spoofed address": GW + ME + b"\x08\x00" + ip("192.0.2.9", "203.0.113.9"),
    "spoofed mac": GW + OTHER + b"\x08\x00" + ip("192.0.2.2", "203.0.113.9"),
    "broadcast": b"\xff" * 6 + ME + b"\x08\x00" + ip("192.0.2.2", "255.255.255.255"),
    "loopback": GW + ME + b"\x08\x00" + ip("127.0.0.1", "127.0.0.1"),
    "ipv6": GW + ME + b"\x86\xdd" + b"\x60\0\0\0\0\0\x3b\x40" + b"\xfe\x80" + b"\0" * 13 + b"\2" + b"\xff\x02" + b"\0" * 13 + b"\1",
    "vlan": GW + ME + b"\x81\x00\x00\x01\x08\x00" + ip("192.0.2.2", "203.0.113.9"),
    "lldp": bytes.fromhex("0180c200000e") + ME + b"\x88\xcc" + b"\0" * 46,
    "icmp": GW + ME + b"\x08\x00" + ip("192.0.2.2", "203.0.113.9", 1, b"\x08\x00\xf7\xff\0\0\0\0"),
    "sctp": GW + ME + b"\x08\x00" + ip("192.0.2.2", "203.0.113.9", 132, b"\0" * 16),
}
for name, frame in frames.items():
    for _ in range(20): raw.send(frame)
report["frames"] = sorted(frames)
print("REPORT" + json.dumps(report))
'''


def interface_counts():
    """Packets sent by every interface of the host's own namespace except loopback."""
    counts = {}
    for line in open("/proc/net/dev").read().splitlines()[2:]:
        name, rest = line.split(":")
        if name.strip() != "lo":
            counts[name.strip()] = int(rest.split()[9])
    return counts


def test_root_with_raw_frames_reaches_nothing(platform, neighbour):
    sandbox = neighbour
    slots = platform.slots()
    sandbox.files.write("/tmp/attack.py", ATTACK)
    before = interface_counts()
    result = sandbox.commands.run("python3 /tmp/attack.py", user="root", timeout=150)
    after = interface_counts()
    report = json.loads(result.stdout.split("REPORT")[1])
    for name in ("internet", "metadata", "gateway ssh", "gateway agent", "private", "loop"):
        assert not report[name].startswith("connected"), report
        assert name == "metadata" or float(report[name].split()[1]) < 4 or report[name].startswith("Timeout"), report
    for name in ("dns elsewhere", "ntp"):
        assert not report[name].startswith("answer"), report
    assert "connected" not in json.dumps(report)
    # The control: the very conversation that carried this report went over the same interface.
    assert "frames" in report
    # Nothing of it reached an interface of the host: no new packets beyond the host's own chatter.
    for name in after:
        assert after[name] - before.get(name, 0) < 60, (name, before, after)
    assert platform.slots() >= slots or platform.slots()


def test_a_slot_has_one_link_no_route_out_and_dropping_rules(platform, neighbour):
    namespaces = list((platform.run_dir / "hostd" / "netns").iterdir())
    assert namespaces
    for namespace in namespaces:
        def inside(*command):
            return subprocess.run(["nsenter", f"--net={namespace}", *command], capture_output=True, text=True, check=True).stdout
        links = {l["ifname"] for l in json.loads(inside("ip", "-j", "link"))}
        assert links == {"lo", "sbx0"}, links
        assert not [r for r in json.loads(inside("ip", "-j", "route") or "[]") if r.get("dst") == "default"]
        assert inside("cat", "/proc/sys/net/ipv4/ip_forward").strip() == "0"
        rules = inside("nft", "list", "ruleset")
        for needed in ('hook ingress device "sbx0"', "hook forward", "policy drop", "192.0.2.2"):
            assert needed in rules, needed


def test_two_sandboxes_cannot_see_each_other(neighbour, make):
    one, two = neighbour, make()
    one.commands.run("python3 -m http.server 7000", background=True, timeout=0)

    def answers_itself():
        return one.commands.run("curl -s -m 20 -o /dev/null http://192.0.2.2:7000/; echo $?", timeout=60).stdout.strip() == "0"

    eventually(answers_itself, 60, "the server answers in its own sandbox")
    for address in ("192.0.2.2", "192.0.2.1"):
        result = two.commands.run(f"curl -s -m 4 -o /dev/null http://{address}:7000/; echo $?", timeout=60).stdout
        assert result.strip() != "0", f"a neighbour answered at {address}"
    assert answers_itself()


def test_without_an_uplink_policies_and_credentials_are_kept_and_said_to_open_nothing(platform, make):
    put = platform.space("credential", "put", "kept", "--host", "api.example", "--header", "x-api-key", stdin=None, input="offline-canary")
    assert put.stdout.strip() == "kept version 1 active"
    box = make()
    try:
        changed = platform.space("policy", "set", box.sandbox_id, "--allow", "api.example:GET")
        assert "not in force" in changed.stderr and "no uplink" in changed.stderr, changed.stderr
        assert "api.example" in platform.space("policy", "show", box.sandbox_id).stdout
        said = platform.space("policy", "explain", box.sandbox_id, "https://api.example/x")
        assert "allowed" in said.stdout and "no uplink" in said.stderr, said
        assert box.commands.run("curl -sS --max-time 5 https://api.example/x || echo unreachable").stdout.strip() == "unreachable"
    finally:
        platform.space("credential", "rm", "kept")
