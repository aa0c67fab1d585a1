"""Fixtures of the Python tests: one installation per test run (starting one takes a template and a database)."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))

import lanes  # noqa: E402
from platform_under_test import Platform, end_politely  # noqa: E402


@pytest.fixture(scope="session")
def platform():
    if os.geteuid() != 0:
        pytest.exit("the system tests make namespaces, mounts and users: run them as root", returncode=3)
    installation = Platform()
    try:
        yield installation.start()
    finally:
        if os.environ.get("SPACE_TEST_KEEP") != "1":
            installation.destroy()


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long forms of the tests (`./dev test --all`)")
    parser.addoption("--lanes", metavar="DIRECTORY", type=pathlib.Path,
                     help="share the tests with the other processes that were given this empty directory")


def pytest_configure():
    end_politely()


def pytest_runtestloop(session):
    directory = session.config.getoption("--lanes")
    if directory is None or session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own
    lanes.run(session, directory)
    return True
