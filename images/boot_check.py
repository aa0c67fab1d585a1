#!/usr/bin/env python3
"""The inside of boot_check.sh; see there."""
import argparse
import ctypes
import http.client
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time

GUEST, HOST, MASK = "192.0.2.2", "192.0.2.1", 30
GUEST_MAC, HOST_MAC = "02:00:00:00:00:02", "02:00:00:00:00:01"
PORT = 49983


def tsc_khz():
    """The rate of the time-stamp counter, measured: /proc/cpuinfo shows the momentary clock of the core instead."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("0f3148c1e2204809d0c3"))  # rdtsc; shl rdx,32; or rax,rdx; ret
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    started, ticks = time.monotonic_ns(), read()
    time.sleep(0.05)
    ended, more = time.monotonic_ns(), read()
    return (more - ticks) * 1_000_000 // (ended - started)


def make_tap():
    for command in ("link set lo up", "tuntap add tap0 mode tap", f"addr add {HOST}/{MASK} dev tap0",
                    f"link set tap0 address {HOST_MAC} up", f"neigh replace {GUEST} lladdr {GUEST_MAC} dev tap0 nud permanent"):
        subprocess.run(["ip", *command.split()], check=True)


def qemu_command(options, console):
    # The two clock arguments are needed: without them the guest waits for ever in timer calibration on a busy host.
    arguments = f"console=ttyS0 quiet no_timer_check tsc_early_khz={tsc_khz()} tsc=reliable reboot=t panic=-1 random.trust_cpu=on " \
                f"mitigations=off {options.append}"
    return ["qemu-system-x86_64", "-M", "microvm,acpi=on,rtc=on", "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max",
            "-smp", "1", "-m", str(options.memory), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", os.path.join(options.guest, "vmlinux"), "-initrd", os.path.join(options.guest, "initrd.gz"),
            "-append", arguments.strip(), "-serial", f"file:{console}",
            "-drive", f"if=none,id=d0,file={options.disk},format=raw,snapshot=on", "-device", "virtio-blk-device,drive=d0",
            "-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no",
            "-device", f"virtio-net-device,netdev=n0,mac={GUEST_MAC}", "-device", "virtio-rng-device"]


def healthy():
    # Each attempt sends a fresh SYN: one that came before the guest's network was up would be repeated after a whole second.
    connection = http.client.HTTPConnection(GUEST, PORT, timeout=0.1)
    try:
        connection.connect()
        connection.sock.settimeout(2)
        connection.request("GET", "/health")
        return connection.getresponse().status < 300
    except OSError:
        return False
    finally:
        connection.close()


def wait_for_agent(machine, limit):
    started = time.monotonic()
    while time.monotonic() - started < limit:
        if machine.poll() is not None:
            raise RuntimeError(f"the emulator ended with {machine.returncode}")
        if healthy():
            return time.monotonic() - started
        time.sleep(0.02)
    raise RuntimeError(f"no answer from the agent within {limit} s")


def run(options, work):
    console = os.path.join(work, "console")
    make_tap()
    started = time.monotonic()
    machine = subprocess.Popen(qemu_command(options, console), stdin=subprocess.DEVNULL)
    try:
        took = wait_for_agent(machine, options.timeout)
        again = time.monotonic()
        healthy()
        print(f"agent answered after {took:.2f} s, then in {(time.monotonic() - again) * 1000:.0f} ms", file=sys.stderr)
        if not options.program:
            return 0
        environment = dict(os.environ, SPACE_GUEST_URL=f"http://{GUEST}:{PORT}", SPACE_GUEST_CONSOLE=console)
        return subprocess.run(options.program, env=environment, check=False).returncode
    except RuntimeError as problem:
        print(f"boot_check: {problem}; the console's last lines:", file=sys.stderr)
        with open(console, "rb") as text:
            sys.stderr.write(text.read()[-4000:].decode(errors="replace"))
        return 1
    finally:
        machine.kill()
        machine.wait()
        print(f"machine ran {time.monotonic() - started:.1f} s", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(prog="boot_check.sh")
    parser.add_argument("--guest", required=True)
    parser.add_argument("--disk", required=True)
    parser.add_argument("--memory", type=int, default=512)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--append", default="", help="more kernel arguments")
    parser.add_argument("program", nargs="*")
    options = parser.parse_args()
    work = tempfile.mkdtemp(prefix="boot_check.")
    # QEMU's own overlay of the image, which it deletes at once, goes there too.
    os.environ["TMPDIR"] = work
    try:
        return run(options, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
