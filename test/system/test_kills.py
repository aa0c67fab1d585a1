"""kill -9 of each program in turn, with creates and command streams in flight: afterwards every row agrees with what
runs, nothing committed is lost, and the host holds nothing that no row owns."""

import os
import signal
import threading

import pytest
from e2b import Sandbox
from fault_walk import agrees
from platform_under_test import eventually

PROGRAMS = ["space-api", "space-controller", "space-worker", "space-hostd", "space-proxy", "postgres"]


def kill_program(platform, program):
    if program == "postgres":
        pid = int((platform.data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])
    else:
        pid = platform.service_pid(program)
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.parametrize("program", PROGRAMS)
def test_kill_nine(platform, make, program):
    standing = [make() for _ in range(2)]
    marks = []
    for index, sandbox in enumerate(standing):
        sandbox.files.write("/home/user/mark", f"mark-{index}")
        marks.append(f"mark-{index}")
    streams = [s.commands.run("while true; do echo tick; sleep 1; done", background=True, timeout=0)
               for s in standing for _ in range(2)]
    created, failed = [], []

    def create():
        try:
            created.append(Sandbox.create(timeout=600))
        except Exception as error:  # a create in flight may fail, but then it must leave nothing
            failed.append(error)

    def drain(handle):
        try:
            handle.wait()
        except Exception:
            pass

    threads = [threading.Thread(target=create) for _ in range(4)] + [
        threading.Thread(target=drain, args=(s,), daemon=True) for s in streams]
    for thread in threads:
        thread.start()
    threading.Event().wait(1.0)
    old = kill_program(platform, program)
    for thread in threads[:4]:
        thread.join(240)
        assert not thread.is_alive(), "a create hangs after the kill"

    def back():
        if program == "postgres":
            return int((platform.data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0]) != old
        return platform.service_pid(program) != old

    eventually(back, 60, f"{program} runs again")
    eventually(lambda: agrees(platform), 90, "rows agree with what runs")
    for sandbox, mark in zip(standing, marks):
        eventually(lambda: sandbox.files.read("/home/user/mark") == mark, 60, "the standing sandbox answers")
    for sandbox in created:
        assert sandbox.commands.run("echo ok", timeout=60).stdout == "ok\n"
        assert sandbox.kill() is True
    for row in platform.api("GET", "/v1/sandboxes?limit=100")["sandboxes"]:
        platform.api("DELETE", f"/v1/sandboxes/{row['id']}?wait=60")
    eventually(lambda: agrees(platform) and not platform.vmm_pids(), 60, "nothing is left over")
    # Machines whose parent was killed are somebody's children now, and are reaped.
    eventually(lambda: not platform.zombies(), 20, "no machine stays as a zombie")
