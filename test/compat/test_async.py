"""The asynchronous client: the same main job, streams of watches, parallel creates."""

import asyncio

import pytest
from e2b import AsyncSandbox, FilesystemEventType


async def test_main_job(e2b_env):
    sandbox = await AsyncSandbox.create(timeout=300)
    try:
        assert (await sandbox.commands.run("python3 -c 'print(6*7)'")).stdout == "42\n"
        handle = await sandbox.commands.run("cat", background=True, stdin=True)
        await sandbox.commands.send_stdin(handle.pid, "typed\n")
        for _ in range(100):
            if handle.stdout == "typed\n":
                break
            await asyncio.sleep(0.1)
        await handle.kill()
        with pytest.raises(Exception):
            await handle.wait()
        assert handle.stdout == "typed\n"
        await sandbox.files.write("a.txt", "async")
        assert await sandbox.files.read("a.txt") == "async"
        assert await sandbox.is_running()
        await watch_stream(sandbox)
    finally:
        assert await sandbox.kill()


async def watch_stream(sandbox):
    await sandbox.files.make_dir("watched")
    seen = []
    watch = await sandbox.files.watch_dir("watched", on_event=lambda e: seen.append((e.name, e.type)), recursive=True)
    await sandbox.files.write("watched/n.txt", "x")
    for _ in range(100):
        if ("n.txt", FilesystemEventType.WRITE) in seen:
            break
        await asyncio.sleep(0.1)
    await watch.stop()
    assert ("n.txt", FilesystemEventType.CREATE) in seen and ("n.txt", FilesystemEventType.WRITE) in seen


async def test_four_creates_at_once(e2b_env):
    if e2b_env != "tls":
        pytest.skip("four boots cost a minute in emulation, and the way to the server makes no difference to them")
    made = await asyncio.gather(*(AsyncSandbox.create(timeout=120) for _ in range(4)), return_exceptions=True)
    sandboxes = [one for one in made if isinstance(one, AsyncSandbox)]
    try:
        assert [one for one in made if one not in sandboxes] == []
        assert len({s.sandbox_id for s in sandboxes}) == 4
        outputs = await asyncio.gather(*(s.commands.run("hostname; cat /proc/sys/kernel/random/uuid") for s in sandboxes))
        assert len({o.stdout for o in outputs}) == 4
    finally:
        await asyncio.gather(*(s.kill() for s in sandboxes))
