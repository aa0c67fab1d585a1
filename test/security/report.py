"""Writes docs/security/attacks.md out of runs. A run leaves its verdicts in the file that SPACE_SECURITY_VERDICTS names, beside
those of earlier runs (the whole takes an emulated guest a quarter of an hour: it may be done in parts):

    SPACE_SECURITY_VERDICTS=build/verdicts.json pytest test/security/test_catalogue.py test/security/test_mutations.py --long
    python3 test/security/report.py build/verdicts.json docs/security/attacks.md
"""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PLACES = {"N": "Link and network", "D": "Names", "T": "TLS", "H": "HTTP", "E": "Abuse of what is allowed", "M": "Inside addresses",
          "R": "Exhaustion", "K": "Credentials", "P": "Agent and ports", "S": "Lifecycle", "B": "Template builds"}


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def control_of(data: dict) -> str:
    control = data["control"]
    if isinstance(control, str):
        return {"web": "a request to the allowed host arrives", "tls": "the same over TLS", "datagram": "a lawful query passes the guard",
                "syn": "a lawful SYN passes the guard", "arp": "a lawful ARP passes the guard", "ping": "a ping of the gateway passes",
                "name": "an allowed name is answered", "hello": "a proper hello is taken", "api": "the credential arrives at its API",
                "echo": "the allowed TCP host answers", "paths": "an allowed path arrives"}[control]
    return f"its lawful form: {' or '.join(control['sees'])}, " + {
        "servers": "arrives at the servers", "guard": "passes the guard", "guest": "seen by the guest"}[control["arrives"]]


def verdict_of(problems: list | None) -> str:
    return "not run" if problems is None else "held" if not problems else "FAILED: " + cell(problems[0][:120])


def add(kept, file: pathlib.Path) -> None:
    """Puts what one run found into the file."""
    all_of_them = json.loads(file.read_text()) if file.exists() else {"cases": {}, "live": {}, "mutations": {}}
    all_of_them["cases"].update({case.id: case.problems for case in kept.cases.values()})
    all_of_them["live"].update(kept.live)
    all_of_them["mutations"].update(kept.mutations)
    file.write_text(json.dumps(all_of_them, indent=1))


def write(found: dict, output: pathlib.Path) -> None:
    from catalogue import load

    cases = {case.id: case for case in load()[1]}
    elsewhere = json.loads((HERE / "elsewhere.json").read_text())
    mutations = json.loads((HERE / "mutations.json").read_text())["mutations"]
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False)
    held = sum(found["cases"].get(id) == [] for id in cases)
    attacks = sum(len(case.steps) - 1 for case in cases.values())
    red = sum(set(found["mutations"].get(m["name"], [])) >= set(m["red"]) for m in mutations)
    lines = [
        "# What was attacked, and what happened", "",
        f"Written by `test/security/report.py` out of runs until {datetime.date.today()}, the last with source {done.stdout.strip() or 'unknown'}.",
        "Each case is tried by root inside a real guest and judged from four sides: the guest, the servers of a small internet of our own",
        "(`test/security/rig.py`), the frames behind the slot's first rules, and the audit log. Each has a control that must arrive.", "",
        f"**{held} of {len(cases)} cases held ({attacks} attacks); of {len(mutations)} defences that were taken away one at a time the",
        f"suite noticed {red}.** A verdict stands until a later run replaces it: those of the defences are of several runs, on several sources.", ""]
    for letter, place in PLACES.items():
        group = [case for case in cases.values() if case.id[0] == letter]
        if group:
            lines += [f"## {place}", "", "| case | attack | tries | control | verdict |", "|---|---|---|---|---|"]
            lines += [f"| {case.id} | {cell(case.what)} | {len(case.steps) - 1} | {cell(control_of(case.data))} | "
                      f"{verdict_of(found['cases'].get(case.id))} |" for case in group]
            lines.append("")
    lines += ["## Connections that live", "", "| check | verdict |", "|---|---|"]
    told = {"live": "S05: a connection is cut when a new policy has no rule for it", "revoked": "K17: a request is cut when its credential is taken away",
            "acknowledged": "I9: an acknowledged policy holds for new connections"}
    lines += [f"| {told[name]} | {'held' if not problems else cell(problems[0])} |" for name, problems in found["live"].items()]
    lines += ["", "## Defences taken away, one at a time", "",
              "The gateway and the broker of this part are built with their defences removable (`test/security/mutations.json`); the slot's",
              "rules are changed in place. Each must turn the named cases red.", "", "| defence | in | cases that must notice | noticed |",
              "|---|---|---|---|"]
    for mutation in mutations:
        seen = found["mutations"].get(mutation["name"])
        verdict = "not run" if seen is None else "yes" if set(seen) >= set(mutation["red"]) else f"NO, only {', '.join(seen) or 'none'}"
        lines.append(f"| {mutation['name']} | `{mutation['file']}` | {', '.join(mutation['red'])} | {verdict} |")
    lines += ["", "Rules that no row takes away, because alone they open nothing: the slot's forward and output chains, the last drop of the",
              "input chain (each repeats what the namespace has no way to do; the flush test shows that with all of them gone there is still no",
              "way out), and the two lines by which the host's own conversation with the agent passes.", ""]
    rows = sorted({re.match(r"[A-Z]\d*", case.id).group(0) for case in cases.values()})
    lines += ["## Rows of the attack list that are not cases here", "", f"Cases above: {len(rows)} rows.", "", "| row | why |", "|---|---|"]
    for title, group in (("shown elsewhere", "shown_elsewhere"), ("accepted, said openly", "accepted"), ("not run here", "not_run_here")):
        lines += [f"| {row} | {title}: {cell(why)} |" for row, why in sorted(elsewhere[group].items())]
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write(json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2]))
