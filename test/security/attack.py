"""Runs inside a guest, as root, with Python's standard library alone: attack.py CASES.json. Tries the control and the attacks
of each case of catalogue.json and prints, a JSON line each, what it saw. It judges nothing: a guest is not asked whether it
was stopped. `{token}` in a step becomes the mark by which the other sides recognise what they must, or must not, see.
"""

import concurrent.futures
import json
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import time

GATEWAY_MAC, OWN_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
GATEWAY, OWN = "192.0.2.1", "192.0.2.2"
PATIENCE = 6.0


def text_bytes(text):
    return text.encode("latin-1")


# -- frames ---------------------------------------------------------------------------------------------------------------


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def payload_of(step, token):
    """UDP, TCP or ICMP, or raw bytes, with the token in its data."""
    data = text_bytes(step.get("data", "")) + token.encode()
    if "icmp" in step:
        kind, code = step["icmp"]
        body = struct.pack("!BBHHH", kind, code, 0, 7, 1) + data
        return 1, body[:2] + struct.pack("!H", checksum(body)) + body[4:]
    if "tcp" in step:
        tcp = step["tcp"]
        options = bytes.fromhex(tcp.get("options", ""))
        flags = tcp.get("flags", 2)
        return 6, ("tcp", struct.pack("!HHIIBBHHH", tcp.get("sport", 40000 + os.getpid() % 9999), tcp.get("dport", 80), 1000, 0,
                                      (20 + len(options)) << 2, flags, 8192, 0, 0) + options + data)
    if "udp" in step:
        udp = step["udp"]
        return 17, struct.pack("!HHHH", udp.get("sport", 40001), udp.get("dport", 53), 8 + len(data), 0) + data
    return 253, data


def ip_packet(step, token):
    ip = step.get("ip", {})
    source, target = ip.get("src", OWN), ip.get("dst", GATEWAY)
    protocol, body = payload_of(step, token)
    if isinstance(body, tuple):
        segment = body[1]
        pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!HH", 6, len(segment))
        body = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    options = bytes.fromhex(ip.get("options", ""))
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, words * 4 + len(body), 7, ip.get("fragment", 0), ip.get("ttl", 64),
                       ip.get("protocol", protocol), 0)
    head += socket.inet_aton(source) + socket.inet_aton(target) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def arp_body(arp, token):
    return struct.pack("!HHBBH", arp.get("hardware", 1), 0x0800, 6, 4, arp.get("operation", 1)) + mac(
        arp.get("sender_mac", OWN_MAC)) + socket.inet_aton(arp.get("sender", OWN)) + b"\0" * 6 + socket.inet_aton(
        arp.get("target", GATEWAY)) + token.encode()


def frame(step, token):
    eth = step.get("eth", {})
    tags = bytes.fromhex(eth.get("tags", ""))
    if "arp" in step:
        kind, body = 0x0806, arp_body(step["arp"], token)
    elif "ip6" in step:
        kind, body = 0x86dd, bytes.fromhex(step["ip6"]) + token.encode()
    elif "raw" in step:
        kind, body = eth.get("type", 0x0800), bytes.fromhex(step["raw"]) + token.encode()
    else:
        kind, body = eth.get("type", 0x0800), ip_packet(step, token)
    whole = mac(eth.get("dst", GATEWAY_MAC)) + mac(eth.get("src", OWN_MAC)) + tags + struct.pack("!H", kind) + body
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind(("eth0", 0))
    for _ in range(step.get("times", 1)):
        wire.send(whole.ljust(60, b"\0"))
    time.sleep(0.01)
    return "sent"


# -- names ----------------------------------------------------------------------------------------------------------------


def labels(name):
    return b"".join(bytes([len(l)]) + l for l in text_bytes(name).split(b".") if l) + b"\0"


def query_of(step):
    if "hex" in step:
        return bytes.fromhex(step["hex"])
    counts = step.get("counts", [1, 0, 0, 0])
    question = labels(step["name"]) + struct.pack("!HH", step.get("type", 1), step.get("class", 1))
    head = struct.pack("!HHHHHH", 0x1234, step.get("flags", 0x0100), *counts)
    return head + question * step.get("questions", 1) + bytes.fromhex(step.get("tail", ""))


def dns(step, _token):
    """"rcode N" with the first address, "none" when nobody answers."""
    query, where = query_of(step), (step.get("server", GATEWAY), step.get("port", 53))
    try:
        if step.get("tcp"):
            peer = socket.create_connection(where, PATIENCE)
            announced = step.get("announce", len(query))
            peer.sendall(struct.pack("!H", announced) + query)
            size = peer.recv(2)
            if len(size) < 2:
                return "closed"
            answer = peer.recv(struct.unpack("!H", size)[0])
        else:
            peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            peer.settimeout(step.get("patience", 2))
            peer.connect(where)
            for _ in range(step.get("times", 1)):
                peer.send(query)
            answer = peer.recv(2048)
    except OSError as error:
        return "none" if isinstance(error, TimeoutError) else "refused"
    count = struct.unpack("!H", answer[6:8])[0]
    said = "rcode %d" % (answer[3] & 15)
    if count and len(answer) >= 4 and step.get("type", 1) == 1:
        said += " " + socket.inet_ntoa(answer[-4:] if not step.get("tail") else answer[len(answer) - 4:])
    return said + (" none" if not count else "")


# -- connections ----------------------------------------------------------------------------------------------------------


def connect(step, _token):
    start = time.monotonic()
    ports = step["port"] if isinstance(step["port"], list) else [step["port"]]
    said = set()
    for port in ports:
        try:
            source = ("", step["from_port"]) if "from_port" in step else None
            peer = socket.create_connection((step["to"], port), PATIENCE, source)
            # A connection that is closed at once was taken by the gateway to be refused.
            peer.settimeout(PATIENCE)
            if step.get("send"):
                peer.sendall(text_bytes(step["send"]))
            said.add("connected" if not step.get("listen") else ("answered" if peer.recv(100) else "closed"))
            peer.close()
        except ConnectionRefusedError:
            said.add("refused")
        except (ConnectionResetError, BrokenPipeError):
            said.add("reset")
        except TimeoutError:
            said.add("timeout")
        except socket.gaierror:
            said.add("no such name")
        except OSError as error:
            said.add(error.__class__.__name__ + " %s" % error.errno)
    slow = time.monotonic() - start > 3 * len(ports)
    return ",".join(sorted(said)) + (" late" if slow else "")


def udp(step, _token):
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.settimeout(1)
    if step.get("broadcast"):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try:
        peer.connect((step["to"], step["port"]))
        peer.send(text_bytes(step["send"]))
        return "answered %d" % len(peer.recv(2048))
    except TimeoutError:
        return "none"
    except OSError:
        return "refused"


def secured(peer, step):
    if step.get("verify"):
        context = ssl.create_default_context()
    else:  # without reading the authorities, which takes an emulated guest long
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if step.get("alpn"):
        context.set_alpn_protocols(step["alpn"])
    name = step.get("sni", step["to"])
    return context.wrap_socket(peer, server_hostname=name or None)


def pieces_of(step):
    for piece in step["send"] if isinstance(step["send"], list) else [step["send"]]:
        if isinstance(piece, str):
            yield text_bytes(piece)
        elif "pause" in piece:
            time.sleep(piece["pause"])
        else:
            yield text_bytes(piece["repeat"]) * piece["times"]


def read_all(peer):
    answer = b""
    try:
        while len(answer) < 4_000_000:
            part = peer.recv(65536)
            if not part:
                return answer, "closed"
            answer += part
    except TimeoutError:
        return answer, "timeout"
    except OSError:
        return answer, "reset"
    return answer, "much"


def http(step, _token):
    """"status N,M" of all answers, with " seen" when the text of `look_for` is among them; else how the connection ended."""
    try:
        peer = socket.create_connection((step["to"], step.get("port", 443 if step.get("tls") else 80)), PATIENCE)
    except socket.gaierror:
        return "no such name"
    except OSError as error:
        return "refused" if isinstance(error, ConnectionRefusedError) else "unreachable"
    peer.settimeout(step.get("patience", PATIENCE))
    try:
        if step.get("tls"):
            peer = secured(peer, step)
        for piece in pieces_of(step):
            peer.sendall(piece)
    except ssl.SSLError:
        return "no tls"
    except OSError:
        pass  # closed while we were sending: the answer says why
    answer, end = read_all(peer)
    found = re.findall(rb"HTTP/1\.[01] (\d{3})", answer)
    said = "status " + b",".join(found).decode() if found else end
    for word in step.get("look_for", []):
        if text_bytes(word) in answer:
            said += " seen"
    return said


def hello_bytes(step):
    """A ClientHello as nobody's library would make it."""
    def extension(kind, body):
        return struct.pack("!HH", kind, len(body)) + body

    extensions = []
    if "sni" in step:
        entries = b"".join(bytes([kind]) + struct.pack("!H", len(text_bytes(name))) + text_bytes(name) for kind, name in step["sni"])
        extensions += [extension(0, struct.pack("!H", len(entries)) + entries)] * step.get("sni_times", 1)
    extensions.append(extension(10, bytes.fromhex("0004001d0017")))
    extensions.append(extension(13, bytes.fromhex("000604030804 0401".replace(" ", ""))))
    if step.get("newest", 0x0304) == 0x0304:
        extensions.append(extension(43, bytes.fromhex("0403040303")))
        extensions.append(extension(51, bytes.fromhex("0024001d0020") + os.urandom(32)))
    if "alpn" in step:
        names = b"".join(bytes([len(n)]) + n.encode() for n in step["alpn"])
        extensions.append(extension(16, struct.pack("!H", len(names)) + names))
    for kind, body in step.get("extensions", []):
        extensions.append(extension(kind, bytes.fromhex(body)))
    if step.get("padding"):
        extensions.append(extension(21, b"\0" * step["padding"]))
    joined = b"".join(extensions)
    version = min(step.get("newest", 0x0303), 0x0303)
    body = struct.pack("!H", version) + os.urandom(32) + b"\x20" + os.urandom(32) + bytes.fromhex("0006 1301 c02b c02f".replace(
        " ", "")) + b"\x01\0" + struct.pack("!H", len(joined)) + joined
    message = b"\x01" + struct.pack("!I", len(body))[1:] + body
    size = step.get("record", 16384)
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(message[i:i + size])) + message[i:i + size]
                    for i in range(0, len(message), size))


def hello(step, token):
    """"hello" when the server goes on with the handshake; "alert N"; or how the connection ended."""
    try:
        peer = socket.create_connection((step.get("to", "allowed.example"), step.get("port", 443)), PATIENCE)
        peer.settimeout(PATIENCE)
        data = hello_bytes(step) + text_bytes(step.get("after", ""))
        size = step.get("segment", len(data))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(data), size):
            peer.sendall(data[i:i + size])
        answer = peer.recv(4096)
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "timeout"
    except OSError:
        return "reset"
    if not answer:
        return "closed"
    if answer[0] == 22:
        return "hello"
    return "alert %d" % answer[6] if answer[0] == 21 and len(answer) > 6 else "other %d" % answer[0]


def resume(step, _token):
    """A session of one name, taken to another: "fresh" unless the server took it up again."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    session, said = None, "no tls"
    for name in (step["to"], step["then"]):
        try:
            peer = context.wrap_socket(socket.create_connection((name, 443), PATIENCE), server_hostname=step["to"] if session is None
                                       else step["then"], session=session)
        except OSError:
            return "no tls"
        said = "resumed" if peer.session_reused else "fresh"
        session = peer.session
        peer.sendall(text_bytes(step["send"].replace("{host}", name)))
        read_all(peer)
    return said


def shell(step, _token):
    done = subprocess.run(step["command"], shell=True, capture_output=True, timeout=step.get("patience", 60))
    said = (done.stdout + done.stderr).decode("latin-1").strip()
    return "exit %d %s" % (done.returncode, said[-200:])


def burst(step, token):
    """Many short connections, so many of them at once; how many were served."""
    def once(_):
        return globals()[step["each"]["do"]](step["each"], token).startswith(step["served"])

    with concurrent.futures.ThreadPoolExecutor(step.get("at_once", 1)) as pool:
        served = sum(pool.map(once, range(step["times"])))
    return "served all" if served == step["times"] else "served some" if served else "served none"


STEPS = {f.__name__: f for f in (frame, dns, connect, udp, http, hello, resume, shell, burst)}


def run(step, token):
    filled = json.loads(json.dumps(step).replace("{token}", token))
    try:
        return STEPS[step["do"]](filled, token)
    except Exception as error:  # what an attack breaks in itself is a result too
        return "broke: %s %s" % (error.__class__.__name__, error)


def main():
    socket.setdefaulttimeout(PATIENCE)
    for case in json.load(open(sys.argv[1])):
        for number, (role, step) in enumerate(case["steps"]):
            start = time.monotonic()
            saw = run(step, case["tokens"][number])
            print(json.dumps({"id": case["id"], "role": role, "number": number, "token": case["tokens"][number], "saw": saw,
                              "seconds": round(time.monotonic() - start, 2)}), flush=True)


if __name__ == "__main__":
    main()
