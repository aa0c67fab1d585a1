#!/usr/bin/env python3
"""Measures the gateway beside Squid (ssl-bump), nginx (re-encrypting) and mitmproxy: same core, client and upstream, one run.

    bench/gateway.py [--install] [--programs DIR] [--seconds N] [--json FILE]
    bench/table.py FILE                           # writes the tables into docs/benchmarks.md

Root; in network namespaces of its own, from which no packet leaves. Policy, injection of a credential through a real broker, and
decisions for the audit are on; the peers add the same header and write an access log. Each proxy is pinned to core 1, client and
upstream to core 0.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time

from gateway_lab import NAME, ROOT, UPSTREAM, Gateway, Lab, inside, wait
from gateway_table import lines

RULE = {"hosts": [NAME], "http": {"methods": ["GET", "HEAD"], "paths": ["/**"]}, "inject": [{"credential": "key"}]}
OTHERS = {"hosts": ["*.mint.example"]}
ECHO = {"hosts": ["echo.example"], "ports": [7], "protocol": "tcp"}
UNLIMITED = {"budgets": {"requests_per_s": 1_000_000, "handshakes_per_s": 1000}}
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(us|ms|s)", text).groups()
    return float(number) * UNITS[unit]


def load(lab: Lab, path: str, connections: int, seconds: int) -> dict:
    said = lab.at(lab.client, "taskset", "-c", "0", "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "--timeout", "10s",
                  f"https://{NAME}/{path}")
    quantile = dict(re.findall(r"^\s+(50|99)%\s+(\S+)", said, re.M))
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    size, unit = re.search(r"Transfer/sec:\s+([0-9.]+)(\wB|B)", said).groups()
    return {"requests_per_s": float(re.search(r"Requests/sec:\s+([0-9.]+)", said)[1]),
            "mb_per_s": float(size) * {"B": 1e-6, "KB": 1e-3, "MB": 1, "GB": 1e3}[unit],
            "p50_ms": milliseconds(quantile["50"]), "p99_ms": milliseconds(quantile["99"]),
            "refused": int(failed[1]) if failed else 0, "socket_errors": "Socket errors" in said}


def measure(lab: Lab, address: str, seconds: int) -> dict:
    lab.names(lab.client, address)
    wait(lambda: "200" in lab.at(lab.client, "curl", "-sk", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", f"https://{NAME}/small",
                                 check=False), 40)
    one = load(lab, "small", 1, seconds)
    many = load(lab, "small", 32, seconds)
    bulk = load(lab, "large", 2, seconds)
    return {"one": one, "many": many, "bulk": bulk}


def dial(lab: Lab, address: str, port: int) -> socket.socket:
    with inside(lab.client):
        made = socket.socket()
    made.settimeout(10)
    made.connect((address, port))
    return made


def handshake(lab: Lab, context: ssl.SSLContext, address: str, name: str) -> float:
    peer = dial(lab, address, 443)
    began = time.perf_counter()
    with context.wrap_socket(peer, server_hostname=name):
        return (time.perf_counter() - began) * 1e3


def minting(lab: Lab, gateway: Gateway, count: int = 60) -> dict:
    """Minting alone, in a process that does nothing else; and a first handshake of a name against the next one of it, seen by a
    client. Before both goes one of another name: after a pause everything is slower, whatever it does."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    known = gateway.resolve("known.mint.example")
    first, again = [], []
    for number in range(count):
        name = f"n{number}.mint.example"
        address = gateway.resolve(name)
        handshake(lab, context, known, "known.mint.example")
        first.append(handshake(lab, context, address, name))
        again.append(handshake(lab, context, address, name))
        time.sleep(0.05)  # within the budget of handshakes
    said = subprocess.run(["taskset", "-c", "1", lab.programs / "tls_test", "--gtest_also_run_disabled_tests",
                           "--gtest_filter=Minter.DISABLED_HowLongItTakes"], capture_output=True, text=True, check=False).stdout
    alone = re.search(r"minted in ([0-9.]+) us", said)
    return {"first_ms": statistics.median(first), "again_ms": statistics.median(again),
            "difference_ms": statistics.median(a - b for a, b in zip(first, again)), "mint_ms": float(alone[1]) / 1e3 if alone else None}


def policy_change(lab: Lab, gateway: Gateway, count: int = 512) -> dict:
    gateway.apply(RULE, ECHO, budgets={"connections": count + 8})
    address = gateway.resolve("echo.example")
    held = []
    for number in range(count):
        held.append(dial(lab, address, 7))
        time.sleep(0.006)  # the slot admits 200 new connections a second
    time.sleep(1)
    applied, seconds = gateway.apply(RULE, OTHERS)
    closed = 0
    for peer in held:
        peer.settimeout(2)
        try:
            closed += peer.recv(1) == b""
        except ConnectionResetError:
            closed += 1
        except TimeoutError:
            pass
        peer.close()
    return {"connections": applied["connections"], "cut": applied["cut"], "ms": seconds * 1e3, "closed_at_the_client": closed}


def many_rules(lab: Lab, gateway: Gateway, seconds: int, count: int = 5000) -> dict:
    """In turns, because what else the machine does is more than what is looked for."""
    rules = [{"hosts": [f"h{n}.rules.example", f"*.d{n}.rules.example"]} for n in range(count - 1)]
    few, many, applying = [], [], []
    for _ in range(3):
        gateway.apply(RULE, **UNLIMITED)
        few.append(load(lab, "small", 1, seconds)["p50_ms"])
        applying.append(gateway.apply(RULE, *rules, **UNLIMITED)[1] * 1e3)
        many.append(load(lab, "small", 1, seconds)["p50_ms"])
    return {"rules": count, "apply_ms": statistics.median(applying), "p50_ms_one_rule": statistics.median(few),
            "p50_ms": statistics.median(many)}


def ours(lab: Lab, seconds: int, result: dict):
    gateway = Gateway(lab).start(RULE, OTHERS, **UNLIMITED)
    idle = gateway.private_kib()
    result["gateway"] = measure(lab, gateway.resolve(NAME), seconds)
    result["gateway"]["private_kib"] = {"idle": idle, "after_load": gateway.private_kib()}
    result["gateway"]["decisions"] = gateway.decisions
    result["minting"] = minting(lab, gateway)
    result["many_rules"] = many_rules(lab, gateway, seconds)
    result["policy_change"] = policy_change(lab, gateway)
    lab.end(gateway.process)


def peers(lab: Lab, seconds: int, result: dict):
    for name, start in (("nginx", lab.nginx), ("squid", lab.squid), ("mitmproxy", lab.mitmproxy)):
        program = {"mitmproxy": "mitmdump"}.get(name, name)
        if shutil.which(program) is None:
            result[name] = "not installed"
            continue
        process, address = start()
        try:
            result[name] = measure(lab, address, seconds)
        except (OSError, RuntimeError, TypeError, KeyError) as failed:
            result[name] = f"not measured: {failed}"
        lab.end(process)
        lab.unredirect()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install the peers' packages (bench/gateway_packages.txt)")
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "build/release/src")
    parser.add_argument("--seconds", type=int, default=5, help="of each load")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench/gateway.py makes network namespaces and users' processes: run it as root")
    if options.install:
        words = [line.strip() for line in (pathlib.Path(__file__).parent / "gateway_packages.txt").read_text().splitlines()]
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *(w for w in words if w and w[0] != "#")], check=True)
    cpu = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    result: dict = {"what": "gateway", "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "host": {"cores": os.cpu_count(), "processor": cpu[1] if cpu else "", "kernel": os.uname().release,
                             "load_before": os.getloadavg()[0]},
                    "programs": os.path.relpath(options.programs, ROOT), "seconds": options.seconds}
    with tempfile.TemporaryDirectory(prefix="space-gateway-bench-") as directory:
        lab = Lab(pathlib.Path(directory), options.programs.resolve())
        try:
            lab.start()
            result["direct"] = measure(lab, UPSTREAM, options.seconds)
            ours(lab, options.seconds, result)
            peers(lab, options.seconds, result)
        finally:
            lab.stop()
    result["host"]["load_after"] = os.getloadavg()[0]
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(lines(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
