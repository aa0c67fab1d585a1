"""Points the unmodified E2B client at the installation under test.

Main mode `tls`: E2B_DOMAIN with host names of *.localhost and our own certificate authority, as a user would set it
from `space env`. Second mode `url`: plain HTTP with one URL for API and sandboxes (E2B_API_URL, E2B_SANDBOX_URL).
"""

import os
import uuid

import pytest

MODES = ("tls", "url")


@pytest.fixture(scope="session", params=MODES)
def mode(request):
    return request.param


def point_client_at(platform, mode, patch):
    for name in list(os.environ):
        if name.startswith("E2B_") or name == "SSL_CERT_FILE":
            patch.delenv(name)
    patch.setenv("E2B_API_KEY", platform.key)
    if mode == "tls":
        patch.setenv("E2B_DOMAIN", platform.domain)
        patch.setenv("SSL_CERT_FILE", platform.ca_file)
    else:
        patch.setenv("E2B_API_URL", platform.http_url)
        patch.setenv("E2B_SANDBOX_URL", platform.http_url)


@pytest.fixture
def e2b_env(platform, mode, monkeypatch):
    point_client_at(platform, mode, monkeypatch)
    return mode


@pytest.fixture
def make(e2b_env):
    """Makes sandboxes that are gone when the test ends."""
    from e2b import Sandbox

    made = []

    def create(**options):
        sandbox = Sandbox.create(**options)
        made.append(sandbox)
        return sandbox

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture(scope="session")
def shared_mark():
    return uuid.uuid4().hex


@pytest.fixture(scope="session")
def shared(platform, mode, shared_mark):
    """One sandbox for all tests of a mode that do not end it: a boot costs seconds in emulation."""
    patch = pytest.MonkeyPatch()
    point_client_at(platform, mode, patch)
    from e2b import Sandbox

    sandbox = Sandbox.create(timeout=1800, metadata={"mark": f"{shared_mark}-{mode}"})
    try:
        yield sandbox
    finally:
        sandbox.kill()
        patch.undo()
