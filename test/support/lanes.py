"""One suite run by several pytest processes beside each other, each with an installation of its own: `--lanes DIRECTORY`.

All of them collect the same tests and take the next that nobody has taken, a module at a time, or a single test where the
module says `pytestmark = pytest.mark.one_by_one`. So they end together, however long which test takes, and none is run twice or
forgotten. A lane that dies ends with a code of its own: what it had taken is missing then, and its stage has failed.
"""

from __future__ import annotations

import itertools
import os
import pathlib


def groups(items) -> list[list]:
    """In the order in which they are taken: whole modules first, then what fills the gaps."""
    def key(item):
        return (item.path, item.nodeid if item.get_closest_marker("one_by_one") else "")

    return [list(together) for _, together in itertools.groupby(
        sorted(items, key=lambda item: item.get_closest_marker("one_by_one") is not None), key)]


def take(directory: pathlib.Path, number: int) -> bool:
    try:
        os.close(os.open(directory / str(number), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def taken(directory: pathlib.Path, items):
    for number, together in enumerate(groups(items)):
        if take(directory, number):
            yield from together


def run(session, directory: pathlib.Path) -> None:
    """pytest's own loop, over what this lane takes. It takes the next before it ends one, for fixtures that both use."""
    mine = taken(directory, session.items)
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
