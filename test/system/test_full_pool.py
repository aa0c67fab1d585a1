"""A pool that is full: the machine that writes waits for room, the others go on, and what was written is whole when there is
room again. Admission promises no more than the pool has, so that it takes somebody else to fill it: here a file of the host."""

import os
import subprocess

import pytest
from platform_under_test import ApiError, eventually

MIB = 1 << 20
# Numbered blocks of 1 MiB, so that one that is lost or old is seen.
BLOCKS = """
import os, sys
block = lambda n: (b"block %09d\\n" % n) * (1 << 16)
path, count = sys.argv[2], int(sys.argv[3])
if sys.argv[1] == "write":
    with open(path, "wb") as file:
        for n in range(count): file.write(block(n))
        file.flush(); os.fsync(file.fileno())
else:
    with open(path, "rb") as file:
        assert all(file.read(1 << 20) == block(n) for n in range(count)) and not file.read(1)
print("done")
"""

pytestmark = pytest.mark.alone


def free_mib(pool) -> int:
    about = os.statvfs(pool)
    return about.f_bavail * about.f_frsize // MIB


@pytest.fixture
def fill(platform):
    """Leaves about so many MiB of the pool."""
    pool = platform.data_dir / "pool"
    ballast = []

    def leave(mib: int) -> None:
        piece = 1024
        while piece >= 16 and free_mib(pool) > mib:
            # In pieces: a file system never gives a file all that it says is free.
            piece = min(piece, max(16, free_mib(pool) - mib))
            ballast.append(pool / f"ballast-{len(ballast)}")
            if subprocess.run(["fallocate", "-l", f"{piece}M", str(ballast[-1])], capture_output=True).returncode != 0:
                piece //= 2

    yield leave
    for path in ballast:
        path.unlink(missing_ok=True)


def answers(sandbox, seconds: float) -> bool:
    from e2b import TimeoutException
    import httpcore
    import httpx
    try:
        return sandbox.commands.run("echo here", timeout=seconds, request_timeout=seconds).stdout == "here\n"
    except (TimeoutException, httpx.TimeoutException, httpcore.TimeoutException):
        return False


def test_the_writer_waits_its_neighbours_go_on_and_nothing_is_lost(platform, neighbour, nothing_left, make, fill):
    pool = platform.data_dir / "pool"
    writer, holder = make(), make()
    for sandbox in (writer, holder):
        sandbox.files.write("/home/user/blocks.py", BLOCKS)
    holder.commands.run("python3 blocks.py write held 300", timeout=200)
    neighbour.files.write("/home/user/before", "whole")
    neighbour.commands.run("sync", user="root")
    fill(60)
    job = writer.commands.run("python3 blocks.py write big 250", background=True, timeout=0)
    eventually(lambda: not answers(writer, 5), 60, "the writer is stopped")

    # Nobody else notices: who does not write needs no room.
    for _ in range(5):
        assert answers(neighbour, 60)
    assert neighbour.files.read("/home/user/before") == "whole"
    row = platform.api("GET", f"/v1/sandboxes/{writer.sandbox_id}")
    assert row["state"] == "running", row
    # Nobody new is let in where nothing can be written, though little of the pool is promised.
    with pytest.raises(ApiError) as refused:
        platform.api("POST", "/v1/sandboxes?wait=60", {"timeout_s": 60})
    assert refused.value.status == 429 and refused.value.body["code"] == "exhausted", refused.value
    assert "something other than sandboxes fills the pool" in refused.value.body["message"]

    # Room is made as anybody would: by removing another sandbox.
    assert holder.kill() is True
    assert job.wait().stdout == "done\n"
    writer.commands.run("sync; echo 3 > /proc/sys/vm/drop_caches", user="root", timeout=100)
    assert writer.commands.run("python3 blocks.py read big 250", timeout=100).stdout == "done\n"
    assert writer.commands.run("dmesg | grep -ciE 'ext4.*(error|abort)|i/o error' || true", user="root").stdout == "0\n"
