"""System tests drive the installation as users do: the E2B client for what runs in a sandbox, the native API for the rest."""

import os

import pytest


@pytest.fixture(autouse=True)
def e2b(platform, monkeypatch):
    for name in list(os.environ):
        if name.startswith("E2B_") or name == "SSL_CERT_FILE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("E2B_API_KEY", platform.key)
    monkeypatch.setenv("E2B_API_URL", platform.http_url)
    monkeypatch.setenv("E2B_SANDBOX_URL", platform.http_url)


@pytest.fixture(scope="module")
def neighbour(platform):
    """A sandbox that a module's tests leave alive: it stands for everybody who has nothing to do with the attack."""
    from e2b import Sandbox

    sandbox = Sandbox.create(timeout=3600, api_key=platform.key, api_url=platform.http_url, sandbox_url=platform.http_url)
    yield sandbox
    sandbox.kill()


@pytest.fixture
def make(platform):
    from e2b import Sandbox

    made = []

    def create(**options):
        sandbox = Sandbox.create(**{"timeout": 600, **options})
        made.append(sandbox)
        return sandbox

    yield create
    for sandbox in made:
        try:
            sandbox.kill()
        except Exception:  # a test may have left the platform down; the leak check of the next one tells
            pass


@pytest.fixture
def nothing_left(platform):
    """Fails the test when it leaves anything of a sandbox behind on the host. To be named before `make`, so that it looks
    after that has removed what it made."""
    from platform_under_test import eventually

    before = platform.holdings()
    mounts = platform.mounts()
    yield

    def same():
        now = platform.holdings()
        # Prepared slots may hold an empty control group; what counts is what is there now and was not before.
        extra = {kind: now[kind] - before[kind] for kind in now if kind != "control groups"}
        extra = {kind: names for kind, names in extra.items() if names}
        assert not extra, f"left behind: {extra}"
        assert platform.mounts() - mounts == set() or len(platform.mounts()) <= len(mounts) + 4
        return True

    eventually(same, 30, "nothing left behind")
