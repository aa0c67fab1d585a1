"""A guest's root does its worst; the owner gets the cause, the host loses nothing, the neighbour goes on."""

import time

import pytest
from platform_under_test import ApiError, eventually

pytestmark = pytest.mark.alone


def ended(platform, sandbox_id):
    try:
        row = platform.api("GET", f"/v1/sandboxes/{sandbox_id}")
    except ApiError as error:
        assert error.status != 404, "an ended sandbox keeps its cause"
        raise
    return row if row["state"] in ("failed", "deleted") else None


def root(sandbox, command):
    return sandbox.commands.run(command, user="root", background=True, timeout=0)


@pytest.mark.parametrize("command, cause", [
    ("echo o > /proc/sysrq-trigger", "guest_shutdown"),
    ("echo b > /proc/sysrq-trigger", "guest_reboot"),
    ("echo c > /proc/sysrq-trigger", "guest_panic"),
])
def test_halt_reboot_and_panic_end_the_sandbox_with_their_cause(platform, nothing_left, make, command, cause):
    sandbox = make()
    handle = root(sandbox, command)
    row = eventually(lambda: ended(platform, sandbox.sandbox_id), 60, f"the end of a sandbox after {command!r}")
    assert row["end_reason"] == cause, row
    with pytest.raises(Exception):
        handle.wait()
    assert sandbox.is_running() is False


def test_killing_the_machine_is_recorded_as_that(platform, nothing_left, make):
    import os
    import signal
    before = set(platform.vmm_pids())
    sandbox = make()
    mine = set(platform.vmm_pids()) - before
    assert mine
    for pid in mine:
        os.kill(pid, signal.SIGKILL)
    row = eventually(lambda: ended(platform, sandbox.sandbox_id), 30, "the end after the death of the machine")
    assert row["end_reason"] == "vmm_exit", row


def test_console_flood_is_bounded(platform, neighbour, nothing_left, make):
    sandbox = make()
    root(sandbox, "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx > /dev/console")
    worker = platform.service_pid("space-worker")
    time.sleep(10)
    rss_kib = int([l for l in open(f"/proc/{worker}/status") if l.startswith("VmRSS")][0].split()[1])
    assert rss_kib < 64 * 1024
    assert neighbour.commands.run("echo fine").stdout == "fine\n"
    assert sandbox.commands.run("echo alive", timeout=60).stdout == "alive\n"


def test_memory_hog_and_full_disk_are_errors_of_that_guest_only(make, neighbour):
    from e2b import CommandExitException, NotEnoughSpaceException
    sandbox = make()
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("exec python3 -c \"b=[]\nwhile True: b.append(bytearray(1<<24))\"", timeout=200)
    assert "out of memory" in raised.value.error and raised.value.exit_code == -1, raised.value
    assert sandbox.commands.run("echo still here").stdout == "still here\n"

    # Nearly all at once, then the rest by writing: root's reserve too.
    sandbox.commands.run("fallocate -l $(($(stat -f -c '%f * %S' /) - (64 << 20))) /fill", user="root", timeout=200)
    sandbox.commands.run("cat /dev/zero > /rest 2>/dev/null; true", user="root", timeout=200)
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("/home/user/more", "x" * 100_000)
    assert sandbox.commands.run("echo still here").stdout == "still here\n"
    neighbour.files.write("/home/user/more", "x" * 100_000)


def test_a_stopped_agent_does_not_hold_up_the_delete(platform, nothing_left, make):
    sandbox = make()
    # PID 1 ignores SIGSTOP from inside; freezing every CPU by a busy realtime loop is what root can do.
    root(sandbox, "chrt -f 99 python3 -c 'while True: pass'")
    time.sleep(2)
    start = time.monotonic()
    assert sandbox.kill() is True
    assert time.monotonic() - start < 30


def test_commands_and_files_with_bad_input(neighbour):
    sandbox = neighbour
    from e2b import InvalidArgumentException
    for bad in ("/tmp/a\0b", ):
        with pytest.raises(Exception):
            sandbox.files.write(bad, "x")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("~nobody-here/x")
    with pytest.raises(Exception):
        sandbox.commands.run("true", user="no-such-user")


def test_a_fork_bomb_ends_at_its_command_and_the_agent_goes_on(make):
    sandbox = make()
    groups = "/sys/fs/cgroup/commands"
    limits = sandbox.commands.run(f"cat {groups}/pids.max $(cut -d: -f3 /proc/self/cgroup | sed 's,^,/sys/fs/cgroup,')/pids.max "
                                  "/proc/sys/kernel/threads-max").stdout.split()
    together, each, kernel = map(int, limits)
    assert each < together < kernel
    bomb = sandbox.commands.run("bash -c ':(){ :|:& };:'; sleep 1000", background=True, timeout=0)
    time.sleep(4)
    # The next command gets a process and its share of the processor.
    assert sandbox.commands.run("echo alive", timeout=120).stdout == "alive\n"
    assert sandbox.commands.kill(bomb.pid) is True
    left = sandbox.commands.run("ps -e --no-headers | wc -l", timeout=60).stdout
    assert int(left) < 150, left
    assert sandbox.is_running()


def test_a_larger_disk_is_a_larger_file_system(platform):
    from e2b import Sandbox
    made = platform.api("POST", "/v1/sandboxes?wait=60", {"timeout_s": 600, "disk_mib": 6144})
    sandbox = Sandbox.connect((made.get("sandbox") or made)["id"])
    try:
        size, free = map(int, sandbox.commands.run("df -BM --output=size,avail / | tail -n 1 | tr -d M").stdout.split())
        assert size > 5700 and free > 5000, (size, free)
        # Also beyond the template's end, and sound: what is written there comes back.
        sandbox.commands.run("fallocate -l 5G /home/user/large && echo end >> /home/user/large && tail -c 4 /home/user/large "
                             "| grep -qx end && dmesg | grep -i 'ext4.*error' && exit 1; true", user="root", timeout=120)
    finally:
        assert sandbox.kill() is True
