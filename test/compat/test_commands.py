"""Commands, background commands, stdin, kill, pty of the unmodified client."""

import time

import pytest
from e2b import CommandExitException, InvalidArgumentException, NotFoundException, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize


def test_run_gives_stdout_and_exit_code_zero(shared):
    result = shared.commands.run("echo hi; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("hi\n", "err\n", 0)


def test_a_failing_command_raises_with_its_code_and_stderr(shared):
    with pytest.raises(CommandExitException) as raised:
        shared.commands.run("echo why >&2; exit 7")
    assert (raised.value.exit_code, raised.value.stderr) == (7, "why\n")


def test_a_missing_program_is_exit_127(shared):
    with pytest.raises(CommandExitException) as raised:
        shared.commands.run("no-such-program")
    assert raised.value.exit_code == 127


def test_python_runs(shared):
    assert shared.commands.run("python3 -c 'print(6*7)'").stdout == "42\n"
    assert shared.commands.run("python -c 'print(6*7)'").stdout == "42\n"


def test_output_arrives_while_the_command_runs(shared):
    seen = []
    start = time.monotonic()
    shared.commands.run("echo first; sleep 2; echo second", on_stdout=lambda text: seen.append((text, time.monotonic() - start)))
    assert [text for text, _ in seen] == ["first\n", "second\n"]
    assert seen[1][1] - seen[0][1] > 1


def test_unicode_is_not_broken_at_chunk_borders(shared):
    text = shared.commands.run("python3 -c \"print('ä€😀' * 20000, end='')\"").stdout
    assert text == "ä€😀" * 20000


def test_a_lone_leading_byte_becomes_one_replacement_character(shared):
    text = shared.commands.run("python3 -c \"import sys; sys.stdout.buffer.write(b'a'*8191 + b'\\xe2')\"").stdout
    assert text == "a" * 8191 + "\ufffd"


def test_special_characters_pass(shared):
    text = "!@#$%^&*()_+ 'single' \"double\" `tick` \\back"
    assert shared.commands.run("cat <<'END'\n" + text + "\nEND").stdout == text + "\n"


def test_much_output_is_whole(shared):
    assert len(shared.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000


def test_environment_of_a_command_overrides_and_does_not_stay(shared):
    assert shared.commands.run("echo $A", envs={"A": "b"}).stdout == "b\n"
    assert shared.commands.run("echo \"[$A]\"").stdout == "[]\n"


def test_cwd_and_user(shared):
    assert shared.commands.run("pwd").stdout == "/home/user\n"
    assert shared.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert shared.commands.run("id -un; id -Gn").stdout.splitlines()[0] == "user"
    assert shared.commands.run("id -un", user="root").stdout == "root\n"
    assert shared.commands.run("sudo id -un").stdout == "root\n"


def test_a_missing_cwd_is_an_invalid_argument(shared):
    with pytest.raises(InvalidArgumentException):
        shared.commands.run("true", cwd="/no/such/dir")


def test_a_deadline_ends_the_command_and_its_whole_tree(shared):
    with pytest.raises(TimeoutException):
        shared.commands.run("(setsid sleep 4242 &) ; sleep 4242", timeout=2)
    time.sleep(1)
    assert shared.commands.run("pgrep -fx 'sleep 4242' || echo none").stdout == "none\n"


def test_background_command_streams_and_ends(shared):
    handle = shared.commands.run("for i in 1 2 3; do echo $i; sleep 0.2; done", background=True)
    out = "".join(stdout for stdout, _, _ in handle if stdout)
    assert out == "1\n2\n3\n"


def test_kill_ends_a_background_command_at_once(shared):
    handle = shared.commands.run("sleep 1000", background=True)
    assert handle.pid in [process.pid for process in shared.commands.list()]
    assert shared.commands.kill(handle.pid) is True
    with pytest.raises(CommandExitException):
        shared.commands.run(f"kill -0 {handle.pid}")
    with pytest.raises(CommandExitException) as raised:
        handle.wait()
    assert raised.value.exit_code == -1
    assert raised.value.error == "signal: killed"
    assert shared.commands.kill(handle.pid) is False


def test_stdin(shared):
    handle = shared.commands.run("cat", background=True, stdin=True)
    shared.commands.send_stdin(handle.pid, "")
    shared.commands.send_stdin(handle.pid, "one\n")
    shared.commands.send_stdin(handle.pid, "two\n")
    got = ""
    for stdout, _, _ in handle:
        got += stdout or ""
        if got.endswith("two\n"):
            break
    assert got == "one\ntwo\n"
    handle.kill()


def test_without_stdin_cat_ends(shared):
    assert shared.commands.run("cat", timeout=20).stdout == ""


def test_connect_to_a_running_command(shared):
    handle = shared.commands.run("sleep 2; echo late", background=True)
    handle.disconnect()
    again = shared.commands.connect(handle.pid)
    assert again.wait().stdout == "late\n"


def test_connect_to_an_unknown_pid_is_not_found(shared):
    with pytest.raises(NotFoundException):
        shared.commands.connect(999999)


def test_list_shows_command_and_pid(shared):
    handle = shared.commands.run("sleep 777", background=True, envs={"Q": "1"}, cwd="/tmp")
    mine = [p for p in shared.commands.list() if p.pid == handle.pid]
    assert len(mine) == 1
    assert mine[0].cmd == "/bin/bash" and mine[0].args == ["-l", "-c", "sleep 777"]
    assert mine[0].cwd == "/tmp" and mine[0].envs == {"Q": "1"}
    handle.kill()


def test_pty_echoes_resizes_and_exits(shared):
    output = bytearray()
    terminal = shared.pty.create(PtySize(rows=24, cols=80), envs={"MARK": "bright"})
    shared.pty.send_stdin(terminal.pid, b"echo $MARK-$((1+1)); tput cols; tput lines\n")
    shared.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    time.sleep(1)
    shared.pty.send_stdin(terminal.pid, b"echo size $(stty size)\n")
    shared.pty.send_stdin(terminal.pid, b"exit\n")
    result = terminal.wait(on_pty=output.extend)
    text = output.decode()
    assert result.exit_code == 0
    assert "bright-2" in text
    assert "size 30 100" in text


def test_pty_kill(shared):
    terminal = shared.pty.create(PtySize(rows=24, cols=80))
    assert shared.pty.kill(terminal.pid) is True
    with pytest.raises(CommandExitException) as raised:
        terminal.wait()
    assert raised.value.exit_code == -1
    assert shared.pty.kill(terminal.pid) is False


def test_pty_reconnect(shared):
    terminal = shared.pty.create(PtySize(rows=24, cols=80))
    terminal.disconnect()
    again = shared.pty.connect(terminal.pid)
    shared.pty.send_stdin(again.pid, b"echo re$((40+2))joined; exit\n")
    output = bytearray()
    again.wait(on_pty=output.extend)
    assert b"re42joined" in output
