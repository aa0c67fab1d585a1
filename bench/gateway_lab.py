"""The laboratory of bench/gateway.py: four network namespaces, an upstream, and each proxy under test started in them.

client ── sbx0 (the slot of our gateway, with its real rules) ─┐
       ── p0 (the peers' namespace) ───────────────────────────┴─ proxies ── upstream
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "bench.example"
UPSTREAM, DNS = "203.0.113.10", "203.0.113.53"
PROXY = "10.8.0.1"
GATEWAY_USER = 790_001
SECRET = "key-of-the-benchmark-0123456789"
IP_TRANSPARENT, IP_RECVORIGDSTADDR, IP_PKTINFO = 19, 20, 8


def run(*words, **kwargs):
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True, **kwargs).stdout


@contextlib.contextmanager
def inside(namespace: str):
    """This thread works in the namespace meanwhile; sockets made there stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            if libc.setns(home.fileno(), 0) != 0:
                os._exit(70)


class Lab:
    def __init__(self, directory: pathlib.Path, programs: pathlib.Path):
        self.directory, self.programs = directory, programs
        self.client, self.slot, self.proxy, self.upstream = (f"gb{os.getpid()}{part}" for part in "cspu")
        self.running: list[subprocess.Popen] = []
        self.ca = directory / "ca.pem"

    # --- namespaces -------------------------------------------------------------------------------------------------
    def start(self):
        self.directory.chmod(0o755)
        for namespace in (self.client, self.slot, self.proxy, self.upstream):
            run("ip", "netns", "add", namespace)
            self.at(namespace, "ip", "link", "set", "lo", "up")
        self.link(self.client, "s0", "192.0.2.2/30", self.slot, "sbx0", "192.0.2.1/30")
        self.link(self.client, "p0", "10.8.0.2/24", self.proxy, "p0", f"{PROXY}/24")
        self.link(self.proxy, "u0", "10.9.0.1/24", self.upstream, "u0", "10.9.0.2/24")
        for address in (UPSTREAM, DNS):
            self.at(self.upstream, "ip", "addr", "add", f"{address}/32", "dev", "lo")
        self.at(self.upstream, "ip", "route", "add", "10.8.0.0/24", "via", "10.9.0.1")
        self.at(self.proxy, "ip", "route", "add", "203.0.113.0/24", "via", "10.9.0.2")
        self.at(self.proxy, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.at(self.client, "ip", "route", "add", "203.0.113.0/24", "via", PROXY)
        self.at(self.client, "ip", "route", "add", "198.18.0.0/15", "via", "192.0.2.1")
        # What hostd does for a slot: the same addresses, the same rules.
        self.at(self.client, "ip", "link", "set", "s0", "address", "02:00:00:00:00:02")
        self.at(self.slot, "ip", "link", "set", "sbx0", "address", "02:00:00:00:00:01")
        # A veth leaves checksums to its other end, which a machine's link does not.
        self.at(self.client, "ethtool", "-K", "s0", "tx", "off", check=False)
        self.at(self.slot, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.sbx0.rp_filter=0")
        self.at(self.slot, "nft", "-f", ROOT / "src" / "hostd" / "slot.nft")
        self.at(self.slot, "ip", "rule", "add", "iif", "sbx0", "pref", "10", "lookup", "100")
        self.at(self.slot, "ip", "route", "add", "local", "default", "dev", "lo", "table", "100")
        self.certificates()
        self.start_upstream()
        return self

    def stop(self):
        for process in reversed(self.running):
            self.end(process)
        for namespace in (self.client, self.slot, self.proxy, self.upstream):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
            shutil.rmtree(f"/etc/netns/{namespace}", ignore_errors=True)

    @staticmethod
    def end(process: subprocess.Popen):
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @staticmethod
    def at(namespace, *words, check=True):
        done = subprocess.run(["ip", "netns", "exec", namespace, *map(str, words)], capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{words}: {done.stderr}")
        return done.stdout

    def link(self, here, name, address, there, other, other_address):
        run("ip", "-n", here, "link", "add", name, "type", "veth", "peer", "name", other, "netns", there)
        for namespace, one, where in ((here, name, address), (there, other, other_address)):
            run("ip", "-n", namespace, "addr", "add", where, "dev", one)
            run("ip", "-n", namespace, "link", "set", one, "up")

    def names(self, namespace, address):
        """What the benchmark's name means to programs there."""
        place = pathlib.Path("/etc/netns") / namespace
        place.mkdir(parents=True, exist_ok=True)
        (place / "hosts").write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def serve(self, namespace, *words, core=None, **kwargs) -> subprocess.Popen:
        pin = [] if core is None else ["taskset", "-c", str(core)]
        log = open(self.directory / "programs.log", "ab")
        process = subprocess.Popen(["ip", "netns", "exec", namespace, *pin, *map(str, words)], stdout=log, stderr=log, **kwargs)
        self.running.append(process)
        return process

    # --- the upstream -----------------------------------------------------------------------------------------------
    def certificates(self):
        at = self.directory
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
            "/CN=bench root", "-keyout", at / "ca.key", "-out", at / "ca.pem")
        run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={NAME}", "-keyout",
            at / "leaf.key", "-out", at / "leaf.csr")
        (at / "leaf.ext").write_text(f"subjectAltName=DNS:{NAME}\n")
        run("openssl", "x509", "-req", "-in", at / "leaf.csr", "-CA", at / "ca.pem", "-CAkey", at / "ca.key", "-days", "2",
            "-CAcreateserial", "-extfile", at / "leaf.ext", "-out", at / "leaf.pem")
        (at / "both.pem").write_text((at / "ca.pem").read_text() + (at / "ca.key").read_text())
        for name in ("leaf.key", "ca.key", "both.pem"):
            (at / name).chmod(0o644)

    def start_upstream(self):
        files = self.directory / "files"
        files.mkdir()
        files.chmod(0o755)
        (files / "small").write_bytes(b"x" * 1024)
        (files / "large").write_bytes(b"x" * (64 << 20))
        (self.directory / "upstream.conf").write_text(f"""
daemon off; worker_processes 1; pid {self.directory}/upstream.pid; error_log stderr;
events {{ worker_connections 2048; }}
http {{ access_log off; sendfile on; keepalive_requests 1000000000; keepalive_timeout 600s;
  client_body_temp_path {self.directory}/t1; proxy_temp_path {self.directory}/t2; fastcgi_temp_path {self.directory}/t3;
  uwsgi_temp_path {self.directory}/t4; scgi_temp_path {self.directory}/t5;
  server {{ listen {UPSTREAM}:443 ssl; ssl_certificate {self.directory}/leaf.pem; ssl_certificate_key {self.directory}/leaf.key;
    ssl_session_cache shared:s:1m; root {files}; }} }}
""")
        self.serve(self.upstream, "nginx", "-c", self.directory / "upstream.conf", core=0)
        with inside(self.upstream):
            dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            dns.bind((DNS, 53))
            echo = socket.create_server((UPSTREAM, 7), backlog=1024)
        threading.Thread(target=self.answer, args=(dns,), daemon=True).start()
        threading.Thread(target=self.hold, args=(echo,), daemon=True).start()

    @staticmethod
    def answer(dns):
        while True:
            question, peer = dns.recvfrom(512)
            end = question.index(b"\0", 12) + 5
            record = b"\xc0\x0c\0\1\0\1\0\0\0\x1e\0\4" + socket.inet_aton(UPSTREAM) if question[end - 3] == 1 else b""
            head = question[:2] + b"\x81\x80\0\1" + struct.pack(">H", 1 if record else 0) + b"\0\0\0\0"
            dns.sendto(head + question[12:end] + record, peer)

    @staticmethod
    def hold(echo):
        held = []
        while True:
            held.append(echo.accept()[0])

    # --- the proxies ------------------------------------------------------------------------------------------------
    def nginx(self):
        (self.directory / "nginx.conf").write_text(f"""
daemon off; worker_processes 1; pid {self.directory}/nginx.pid; error_log stderr;
events {{ worker_connections 2048; }}
http {{ access_log {self.directory}/nginx.access; keepalive_requests 1000000000; keepalive_timeout 600s;
  client_body_temp_path {self.directory}/n1; proxy_temp_path {self.directory}/n2; fastcgi_temp_path {self.directory}/n3;
  uwsgi_temp_path {self.directory}/n4; scgi_temp_path {self.directory}/n5;
  upstream up {{ server {UPSTREAM}:443; keepalive 64; keepalive_requests 1000000000; }}
  server {{ listen {PROXY}:443 ssl; ssl_certificate {self.directory}/leaf.pem; ssl_certificate_key {self.directory}/leaf.key;
    location / {{ proxy_pass https://up; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host {NAME};
      proxy_set_header X-Api-Key {SECRET}; proxy_ssl_server_name on; proxy_ssl_name {NAME}; proxy_ssl_verify on;
      proxy_ssl_trusted_certificate {self.directory}/ca.pem; proxy_buffering off; }} }} }}
""")
        return self.serve(self.proxy, "nginx", "-c", self.directory / "nginx.conf", core=1), PROXY

    def squid(self):
        at = self.directory / "squid"
        at.mkdir()
        shutil.chown(at, "proxy")
        run("/usr/lib/squid/security_file_certgen", "-c", "-s", at / "db", "-M", "4MB")
        for path in [at / "db", *(at / "db").rglob("*")]:
            shutil.chown(path, "proxy")
        (at / "squid.conf").write_text(f"""
pid_filename {at}/pid
http_port {PROXY}:3128
https_port {PROXY}:3129 intercept ssl-bump tls-cert={self.directory}/both.pem generate-host-certificates=on dynamic_cert_mem_cache_size=4MB
sslcrtd_program /usr/lib/squid/security_file_certgen -s {at}/db -M 4MB
sslcrtd_children 1
acl known ssl::server_name {NAME}
acl known_host dstdomain {NAME}
ssl_bump peek step1
ssl_bump bump known
ssl_bump terminate all
acl tunnel method CONNECT
acl upstream dst {UPSTREAM}/32
http_access allow tunnel upstream
http_access allow known_host
http_access deny all
tls_outgoing_options cafile={self.directory}/ca.pem
request_header_add X-Api-Key {SECRET} all
dns_nameservers {DNS}
cache deny all
cache_log {at}/cache.log
access_log stdio:{at}/access.log
coredump_dir {at}
client_persistent_connections on
server_persistent_connections on
workers 1
""")
        (at / "squid.conf").write_text((at / "squid.conf").read_text().replace("acl known ssl", "acl step1 at_step SslBump1\nacl known ssl", 1))
        self.at(self.proxy, "nft", "add table ip bench; add chain ip bench pre { type nat hook prerouting priority dstnat; }; "
                f"add rule ip bench pre iifname p0 tcp dport 443 redirect to :3129")
        return self.serve(self.proxy, "squid", "-N", "-f", at / "squid.conf", core=1), UPSTREAM

    def unredirect(self):
        self.at(self.proxy, "nft", "delete", "table", "ip", "bench", check=False)

    def mitmproxy(self):
        self.names(self.proxy, UPSTREAM)
        return self.serve(self.proxy, "mitmdump", "-q", "--mode", f"reverse:https://{NAME}", "--listen-host", PROXY, "-p", "443",
                          "--set", f"confdir={self.directory}/mitm", "--set", f"ssl_verify_upstream_trusted_ca={self.ca}",
                          "--set", "stream_large_bodies=1m", "--set", f"modify_headers=/~q/X-Api-Key/{SECRET}",
                          core=1), PROXY


class Gateway:
    """Our gateway as hostd starts it (sockets, user, namespace), without jail and control group, with a real broker."""

    def __init__(self, lab: Lab):
        self.lab, self.generation = lab, 0
        self.buffer, self.heard, self.decisions = b"", {}, 0
        self.changed = threading.Condition()

    def start(self, *rules, **policy):
        at = self.lab.directory / "gateway"
        for part in ("run/broker", "run/broker-use", "data/broker"):
            (at / part).mkdir(parents=True)
        (at / "data/broker").chmod(0o700)
        (at / "config.json").write_text(json.dumps({"run_dir": f"{at}/run", "data_dir": f"{at}/data", "api_user": "nobody",
                                                    "worker_user": "nobody"}))
        self.lab.serve(self.lab.proxy, self.lab.programs / "space-broker", "--config", at / "config.json", core=0)
        self.broker_path, use = str(at / "run/broker/broker.sock"), str(at / "run/broker-use/use.sock")
        wait(lambda: os.path.exists(use))
        sockets = self.sockets(at, use)
        # Out of the way of the numbers that they get.
        passed = [fcntl.fcntl(s.fileno(), fcntl.F_DUPFD, 100) for s in sockets]
        become = "import os, sys\nfor n, fd in enumerate(map(int, sys.argv[2:])): os.dup2(fd, 5 + n); os.close(fd)\nos.execv(sys.argv[1], ['space-gateway'])"
        self.process = self.lab.serve(
            self.lab.proxy, "setpriv", "--reuid", GATEWAY_USER, "--regid", GATEWAY_USER, "--clear-groups", sys.executable, "-c",
            become, self.lab.programs / "space-gateway", *passed, core=1, pass_fds=passed)
        self.worker = socket.socket(socket.AF_UNIX)
        self.worker.connect(str(at / "control"))
        threading.Thread(target=self.listen, daemon=True).start()
        threading.Thread(target=self.keep, daemon=True).start()
        self.lease()
        self.generation += 1
        self.tell(start={"sandbox": "bench", "policy": self.policy(rules, policy), "resolvers": [DNS],
                         "trusted_ca_pem": self.lab.ca.read_text(), "admitted_networks": ["203.0.113.0/24"]})
        self.wait_for("started")
        return self

    def sockets(self, at, use):
        control = socket.socket(socket.AF_UNIX)
        control.bind(str(at / "control"))
        control.listen()
        renewals = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        renewals.bind(str(at / "renewals"))
        renewals.listen()
        opened = [control]
        with inside(self.lab.slot):
            for kind, port in ((socket.SOCK_STREAM, 15001), (socket.SOCK_DGRAM, 53), (socket.SOCK_STREAM, 53)):
                one = socket.socket(socket.AF_INET, kind)
                one.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if kind == socket.SOCK_DGRAM:
                    one.setsockopt(socket.SOL_IP, IP_RECVORIGDSTADDR, 1)
                    one.setsockopt(socket.SOL_IP, IP_PKTINFO, 1)
                one.bind(("127.0.0.1", port))
                if kind == socket.SOCK_STREAM:
                    one.listen(512)
                opened.append(one)
        # The broker knows a gateway by its user.
        os.chmod(use, 0o666)
        broker = socket.socket(socket.AF_UNIX)
        os.seteuid(GATEWAY_USER)
        try:
            broker.connect(use)
        finally:
            os.seteuid(0)
        return [*opened, renewals, broker]

    def ask_broker(self, method, path, body):
        text = json.dumps(body).encode()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(self.broker_path)
            peer.sendall(f"{method} {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
            answer = b"".join(iter(lambda: peer.recv(65536), b""))
        head, _, rest = answer.partition(b"\r\n\r\n")
        if int(head.split()[1]) not in (200, 204):
            raise RuntimeError(answer)
        return json.loads(rest) if rest else None

    def lease(self):
        sealed = self.ask_broker("POST", "/seal", {
            "credential": "c1", "version": 1, "value": SECRET,
            "binding": {"hosts": [NAME], "header": "x-api-key", "paths": ["/**"]}})
        self.ask_broker("PUT", "/leases", {"sandbox": "bench", "gateway_uid": GATEWAY_USER, "name": "key", "sealed": sealed,
                                           "seconds": 900})

    def policy(self, rules, more):
        level = {"posture": "allowlist", "rules": [dict(rule, id=f"r{n}") for n, rule in enumerate(rules)], **more}
        return {"generation": self.generation, "levels": [{"level": "sandbox", "policy": level}]}

    def tell(self, **command):
        self.worker.sendall(json.dumps(command).encode() + b"\n")

    def listen(self):
        while part := self.worker.recv(1 << 20):
            # Decisions are what an audit would write; here they are counted. The rest is an answer.
            *lines, self.buffer = (self.buffer + part).split(b"\n")
            for line in lines:
                if line.startswith(b'{"decision"') or b'"decision":{' in line[:80]:
                    self.decisions += 1
                    continue
                with self.changed:
                    self.heard.update({k: v for k, v in json.loads(line).items() if v is not None})
                    self.changed.notify_all()

    def keep(self):
        with contextlib.suppress(OSError):
            while True:
                time.sleep(5)
                self.tell(ping=True)

    def wait_for(self, event, seconds=30):
        with self.changed:
            if not self.changed.wait_for(lambda: event in self.heard, seconds):
                raise RuntimeError(f"the gateway never said {event}")
            return self.heard.pop(event)

    def apply(self, *rules, **policy):
        self.generation += 1
        text = self.policy(rules, policy)
        began = time.perf_counter()
        self.tell(policy=text)
        applied = self.wait_for("applied")
        if applied.get("error"):
            raise RuntimeError(applied)
        return applied, time.perf_counter() - began

    def resolve(self, name) -> str:
        question = b"\1\2\1\0\0\1\0\0\0\0\0\0" + b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0\0\1\0\1"
        with inside(self.lab.client):
            asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with asker:
            asker.settimeout(5)
            asker.sendto(question, ("192.0.2.1", 53))
            return socket.inet_ntoa(asker.recv(512)[-4:])

    def private_kib(self) -> int:
        # `ip netns exec` and setpriv became the gateway, so its number is the process's.
        for line in pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1])
        return -1


def wait(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("a part did not come up")
        time.sleep(0.02)
