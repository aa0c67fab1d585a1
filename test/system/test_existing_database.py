"""`space up --database-url`: somebody else's PostgreSQL, over TCP with a password; and the command line over TLS."""

import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile

import pytest
from platform_under_test import ROOT, Platform, eventually, free_port

BINARIES = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
PASSWORD = "p@ss/w:rd 1"  # everything that a URL has to escape
ESCAPED = "p%40ss%2Fw%3Ard%201"


@pytest.fixture(scope="module")
def database_url():
    owner = pwd.getpwnam("postgres")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="space-test-db-", dir="/var/tmp"))
    port = free_port()

    def postgres(*command: str) -> None:
        done = subprocess.run([str(BINARIES / command[0]), *command[1:]], user=owner.pw_uid, group=owner.pw_gid, extra_groups=[],
                              cwd="/", env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        (directory / "password").write_text(PASSWORD)
        for path in (directory, directory / "password"):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        data = str(directory / "data")
        postgres("initdb", "-D", data, "-U", "tenant", "-A", "scram-sha-256", f"--pwfile={directory / 'password'}", "--no-sync")
        postgres("pg_ctl", "-D", data, "-w", "-l", str(directory / "log"), "-o",
                 f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={directory} -c fsync=off", "start")
        yield f"postgresql://tenant:{ESCAPED}@127.0.0.1:{port}/postgres"
    finally:
        if (directory / "data" / "postmaster.pid").exists():
            postgres("pg_ctl", "-D", str(directory / "data"), "-m", "immediate", "stop")
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def elsewhere(database_url):
    installation = Platform()
    installation.up_options = ["--database-url", database_url]
    try:
        yield installation.start()
    finally:
        installation.destroy()


def over_tls(platform) -> dict[str, str]:
    """As from another machine: no file of the installation but its authority."""
    return {"SPACE_API_URL": f"https://api.{platform.domain}", "SPACE_API_KEY": platform.key, "SPACE_CA_FILE": platform.ca_file,
            "SPACE_RUN_DIR": "/nonexistent", "SPACE_DATA_DIR": "/nonexistent"}


def test_the_main_job_with_somebody_elses_database_over_tls(elsewhere, tmp_path):
    space = lambda *words, **more: elsewhere.space(*words, env=over_tls(elsewhere), **more)
    assert not (elsewhere.data_dir / "postgres" / "PG_VERSION").exists(), "no cluster of its own"
    sandbox = space("sandbox", "create").stdout.strip()
    ran = space("exec", sandbox, "--", "python3", "-c", "import sys; print(6*7); sys.exit(5)", check=False)
    assert (ran.stdout, ran.returncode) == ("42\n", 5), ran
    file = tmp_path / "data.csv"
    file.write_bytes(os.urandom(300_000))
    space("cp", str(file), f"{sandbox}:/home/user/")
    space("cp", f"{sandbox}:/home/user/data.csv", str(tmp_path / "back.csv"))
    assert (tmp_path / "back.csv").read_bytes() == file.read_bytes()
    # Permission bits go both ways, of folders too; a script that came in is run as it is.
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    (tree / "run.sh").write_text("#!/bin/sh\necho it runs\n")
    (tree / "closed" / "notes").write_text("secret")
    for path, mode in (("run.sh", 0o755), ("closed/notes", 0o640), ("closed", 0o500)):
        (tree / path).chmod(mode)
    space("cp", str(tree), f"{sandbox}:/home/user/")
    assert space("exec", sandbox, "--", "/home/user/tree/run.sh").stdout == "it runs\n"
    modes = space("exec", sandbox, "--", "stat", "-c", "%a %U", *(f"/home/user/tree/{path}" for path in ("run.sh", "closed/notes", "closed")))
    assert modes.stdout == "755 user\n640 user\n500 user\n", modes
    space("cp", f"{sandbox}:/home/user/tree", str(tmp_path / "out"))
    for path, mode in (("run.sh", 0o755), ("closed/notes", 0o640), ("closed", 0o500)):
        assert (tmp_path / "out" / path).stat().st_mode & 0o7777 == mode, path
    assert (tmp_path / "out" / "closed" / "notes").read_text() == "secret"
    assert sandbox in space("sandbox", "list").stdout
    space("sandbox", "rm", sandbox)
    stranger = elsewhere.space("sandbox", "list", check=False,
                               env={**over_tls(elsewhere), "SPACE_CA_FILE": "/etc/ssl/certs/ca-certificates.crt"})
    assert stranger.returncode != 0 and "certificate" in stranger.stderr.lower(), stranger


def test_the_password_is_with_those_who_need_it_alone(elsewhere):
    for path in elsewhere.run_dir.rglob("*.json"):
        if "p%40ss" in path.read_text():
            about = path.stat()
            assert path.name == "config-database.json" and about.st_mode & 0o777 == 0o640 and about.st_uid == 0, path
    assert "p%40ss" in (elsewhere.run_dir / "config-database.json").read_text()
    for pid, command in elsewhere.processes().items():
        assert "p%40ss" not in command and PASSWORD not in command, pid


def test_a_service_manager_starts_and_stops_it_and_everything_is_still_there(elsewhere):
    """What deploy/space.service does: the supervisor in the foreground, ended by SIGTERM to it alone."""
    unit = (ROOT / "deploy" / "space.service").read_text()
    command = [line.removeprefix("ExecStart=").split() for line in unit.splitlines() if line.startswith("ExecStart=")][0]
    assert command == ["/var/lib/space/programs/space", "up", "--foreground"] and "KillMode=mixed" in unit
    elsewhere.down()
    service = subprocess.Popen(
        [str(elsewhere.data_dir / "programs" / "space"), *command[1:]], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SPACE_DATA_DIR": str(elsewhere.data_dir), "SPACE_RUN_DIR": str(elsewhere.run_dir)})
    try:
        history = eventually(lambda: elsewhere.api("GET", "/v1/sandboxes?limit=10&state=deleted")["sandboxes"], 60, "it answers")
        assert history, "keys and history outlive a restart"
        assert service.poll() is None, "it stays in the foreground"
        service.send_signal(signal.SIGTERM)
        assert service.wait(100) == 0, service.stderr.read()
        assert not elsewhere.processes()
    finally:
        service.kill()
