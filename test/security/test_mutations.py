"""One defence at a time is taken away, and the cases that stand for it must notice: a suite that stays green without a defence
does not test it. The gateway and the broker are replaced by their mutants (CMakeLists.txt here), the slot's rules are changed in
place. A case counts as red only for its attack; a broken control would be a broken network."""

import os
import pathlib
import shutil
import signal

import mutate
import pytest
from attacker import LIVE_CHECKS
from catalogue import load
from platform_under_test import PROGRAMS, eventually

DATA = mutate.load()
# In every run a sample, of each kind of place; `./dev test --all` takes away every one (--long).
SAMPLE = ("guard.ip-source", "guard.tagged-frames", "guard.special-addresses", "steer.no-tracking", "gateway.sni", "gateway.host",
          "gateway.guest-auth", "parser.one-host", "hello.canonical-name", "names.allowed-only", "names.nobody-asked", "policy.live",
          "policy.acknowledged", "policy.revoke")


def put_in_place(platform, name: str) -> None:
    mutant = PROGRAMS.parent / "test" / "security" / f"{name}-mutant"
    if not mutant.exists():
        mutant = pathlib.Path(os.environ.get("SPACE_MUTANTS", "/nonexistent")) / f"{name}-mutant"
    assert mutant.exists(), f"build the target {name}-mutant, or say in SPACE_MUTANTS where it is"
    place = platform.data_dir / "programs" / name
    shutil.copy(place, place.with_suffix(".real"))
    shutil.copy(mutant, place.with_suffix(".new"))
    place.with_suffix(".new").rename(place)


def end_all(platform, name: str) -> None:
    for pid in [p for p, command in platform.processes().items() if os.path.basename(command.split(" ")[0]) == name]:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def mutants(platform, attacker, verdicts):
    """The guest's gateway and the broker are mutants from now on, in which nothing is taken away yet. Cases that fail even so
    would prove nothing: their ids."""
    for name in ("space-gateway", "space-broker"):
        put_in_place(platform, name)
        end_all(platform, name)

    eventually(lambda: not attacker.acknowledged(), 30, "the network works with the mutants")
    yield {case.id for case in verdicts.cases.values() if case.problems}
    # Later tests find the real programs. This guest keeps its gateway: a third death within ten minutes would end its network.
    for name in ("space-gateway", "space-broker"):
        place = platform.data_dir / "programs" / name
        place.with_suffix(".real").rename(place)
    end_all(platform, "space-broker")
    eventually(lambda: attacker.broker.call("GET", "/nothing")[0] == 404, 30, "the broker is back")


@pytest.fixture(scope="module")
def whole(request, mutants, attacker, verdicts):
    """The same; where the catalogue was not run before, of the cases that this run needs."""
    if verdicts.cases:
        return mutants
    chosen = {item.callspec.params["name"] for item in request.session.items if item.originalname == "test_the_suite_notices"}
    needed = {case for m in DATA["mutations"] if m["name"] in chosen for case in m["red"]} - set(LIVE_CHECKS)
    return {case.id for case in attacker.run(load(needed)[1]) if case.problems}


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        every = metafunc.config.getoption("--long")
        metafunc.parametrize("name", [m["name"] for m in DATA["mutations"] if every or m["name"] in SAMPLE])


def test_the_suite_notices(whole, attacker, slot_rules, verdicts, name):
    mutation = next(m for m in DATA["mutations"] if m["name"] == name)
    in_rules = mutation.get("file") == "src/hostd/slot.nft"
    cases = load({c for c in mutation["red"] if c not in LIVE_CHECKS})[1]
    assert not whole & {c.id for c in cases}, "these cases fail even with every defence"
    try:
        if in_rules:
            slot_rules(mutate.rules(DATA, name))
        found = {case.id: case.problems for case in attacker.run(cases, "" if in_rules else name)}
        for check in LIVE_CHECKS:
            if check in mutation["red"]:
                found[check] = getattr(attacker, check)(name)
    finally:
        if in_rules:
            slot_rules()
    red = {case: [p for p in problems if not p.startswith("control")] for case, problems in found.items()}
    verdicts.mutations[name] = sorted(case for case, problems in red.items() if problems)
    green = [case for case, problems in red.items() if not problems]
    assert not green, f"without {name} these stay green: {green}; seen: {found}"


# What lets the host's own conversation with the agent through, jumps, and what only fails to carry the allowed traffic when it is gone.
NO_DEFENCE = ("ip daddr 192.0.2.1 tcp flags & (syn | ack) != syn counter accept", "tcp dport 53 counter accept", "jump budget_in",
              "counter accept", "goto to_gateway", "type filter hook", "}", "ether type arp jump")


def test_every_rule_of_the_guard_has_its_mutation():
    text = (mutate.ROOT / "src/hostd/slot.nft").read_text()
    guard = text[text.index("chain from_guest_arp"):text.index("table inet steer")]
    rules = [line.strip() for line in guard.splitlines() if line.strip() and not line.strip().startswith(("#", "chain"))]
    taken = [edit["find"] for m in DATA["mutations"] if m["file"] == "src/hostd/slot.nft" for edit in m["edits"]]
    missed = [rule for rule in rules if not any(rule in find or find.strip() in rule for find in taken)
              and not any(rule.startswith(known) or rule.endswith(known) for known in NO_DEFENCE)]
    assert not missed, "say in mutations.json how these are taken away, and which case notices"
