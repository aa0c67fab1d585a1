"""Sees what came past the first rules of a slot: witness.py NETWORK-NAMESPACE OUTPUT, as root.

A second table at the tap's ingress hook, right behind the guard, copies every frame that is still there to a device where this
process reads it. Frames with a token of the catalogue are counted in OUTPUT, a JSON line each. Beside it a trap listens in the
namespace on ports that a guest must never reach: nothing of the platform does, so that something could be reached at all."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

TABLE = """table netdev witness {
  chain behind_the_guard {
    type filter hook ingress device "sbx0" priority -440; policy accept;
    dup to "wit0"
  }
}
"""
TRAPS = (22, 8022)


def note(output, lock, **fields):
    with lock:
        output.write(json.dumps(fields) + "\n")


def trap(port, output, lock):
    server = socket.create_server(("0.0.0.0", port))
    while True:
        peer, _ = server.accept()
        with contextlib.suppress(OSError), peer:
            peer.settimeout(2)
            note(output, lock, kind="trap", token=peer.recv(100).decode("latin-1"))


def main():
    output, lock = open(sys.argv[1], "a", buffering=1), threading.Lock()
    for command in (["ip", "link", "add", "wit0", "type", "veth", "peer", "name", "wit1"], ["ip", "link", "set", "wit0", "up"],
                    ["ip", "link", "set", "wit1", "up"]):
        subprocess.run(command, check=True)
    subprocess.run(["nft", "-f", "-"], input=TABLE, text=True, check=True)
    for port in TRAPS:
        threading.Thread(target=trap, args=(port, output, lock), daemon=True).start()
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    wire.bind(("wit1", 0))
    print("ready", flush=True)
    while True:
        for token in set(re.findall(rb"tk[0-9a-f]{10}", wire.recv(65536))):
            note(output, lock, kind="frame", token=token.decode())


def clean(*_):
    # Not `nft delete`: a test may have loaded other rules meanwhile, which have no such table.
    subprocess.run(["nft", "delete", "table", "netdev", "witness"], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", "wit0"], capture_output=True, check=False)
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) == 3:  # started from outside: go into the namespace first
        os.execvp("nsenter", ["nsenter", f"--net={sys.argv[1]}", sys.executable, __file__, sys.argv[2]])
    signal.signal(signal.SIGTERM, clean)
    main()
