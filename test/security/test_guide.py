"""docs/guide/credentials.md, command by command, as it stands there: a new user's first secret."""

import pathlib
import re
import subprocess
import time

from platform_under_test import PROGRAMS, ROOT

GUIDE = ROOT / "docs" / "guide" / "credentials.md"
# The guide's hosts are the rig's.
HOSTS = {"api.llm.example": "allowed.example", "packages.example": "neighbour.example"}


def commands() -> str:
    blocks = re.findall(r"^```\n(.*?)^```", GUIDE.read_text(), re.S | re.M)
    script = "\n".join(blocks)
    for name, ours in HOSTS.items():
        script = script.replace(name, ours)
    return script


def test_every_command_of_the_guide_does_what_it_says(platform, rig, tmp_path):
    for name, value in (("key.txt", "guide-canary-1\n"), ("new-key.txt", "guide-canary-2\n"), ("token.txt", "ghp_none\n")):
        (tmp_path / name).write_text(value)
    script = commands()
    assert script.count("space ") > 15, "the guide lost its commands"
    since = time.time()
    env = {"PATH": f"{pathlib.Path(PROGRAMS).resolve()}:/usr/bin:/bin", "HOME": str(tmp_path), "NO_COLOR": "1",
           "SPACE_RUN_DIR": str(platform.run_dir), "SPACE_DATA_DIR": str(platform.data_dir)}
    done = subprocess.run(["bash", "-ex", "-c", script + "\nspace sandbox rm $id"], cwd=tmp_path, env=env, timeout=300,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for expected in ("llm-key version 1 active", "allowed: allowed (level sandbox, rule llm)", "hello from allowed.example",
                     "not this path", "in force on", "llm-key version 2 active", "llm-key version 2 revoked", "whole: every line"):
        assert expected in said, (expected, said)
    seen = rig.arrived(since, kind="http", host="allowed.example", path="/v1/messages")
    assert [one["headers"].get("x-api-key") for one in seen] == ["guide-canary-1"], seen
    assert not rig.arrived(since, kind="http", path="/v1/organizations")
    assert "guide-canary" not in said
