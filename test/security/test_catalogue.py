"""Every case of catalogue.json from inside a guest, as root: the guest, the servers, the slot's guard and the audit log agree
that the attacks failed, and the control beside them arrived."""

import subprocess

import pytest
from attacker import CASES, LIVE_CHECKS


@pytest.mark.parametrize("case", [case.id for case in CASES])
def test_an_attack_fails_and_its_control_arrives(results, case):
    assert not results[case].problems, f"{case}: {results[case].what}\n" + "\n".join(results[case].problems)


@pytest.mark.parametrize("check", LIVE_CHECKS)
def test_what_is_under_way_ends_with_its_permission(attacker, verdicts, check):
    verdicts.live[check] = getattr(attacker, check)()
    assert not verdicts.live[check]


def test_flushed_rules_open_no_way(attacker, slot, slot_rules, rig):
    """N30: with every rule of the slot gone, a foreign address has no answer: there is no route and no second link."""
    try:
        subprocess.run(["nsenter", f"--net={slot}", "nft", "flush", "ruleset"], check=True)
        said = attacker.guest.python("""
import socket
for where in (("203.0.113.66", 8080), ("203.0.113.10", 80), ("10.1.2.3", 80), ("198.18.0.1", 80)):
    try:
        socket.create_connection(where, 2).sendall(b"tkflushed0001"); print("connected")
    except OSError as e:
        print(type(e).__name__)
""")
    finally:
        slot_rules()
        attacker.witness.watch_again()
    assert "connected" not in said, said
    assert not rig.bytes_with("tkflushed0001")
    assert not attacker.acknowledged(), "the network works again"
