"""The attack catalogue: reads catalogue.json, makes the list of steps that attack.py runs inside the guest, and judges what
all sides saw. A case has one control (which must arrive) and one or more attacks (which must not); each step carries a token
of its own. Sides: `guest` (what attack.py printed), `servers` (what the rig's servers read), `guard` (which frames came past
the slot's first rules), `audit` (the records of decisions)."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
import secrets

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Step:
    role: str  # control, attack
    step: dict
    token: str = dataclasses.field(default_factory=lambda: "tk" + secrets.token_hex(5))
    saw: str = ""
    seconds: float = 0


@dataclasses.dataclass
class Case:
    id: str
    what: str
    policy: str
    data: dict
    control: dict
    steps: list[Step]
    problems: list[str] = dataclasses.field(default_factory=list)

    def for_guest(self) -> dict:
        return {"id": self.id, "steps": [[s.role, s.step] for s in self.steps], "tokens": [s.token for s in self.steps]}


def attacks_of(case: dict) -> list[dict]:
    """`vary` gives one field many values, or ("*") many fields one step each; "{field}" in a text is that value."""
    base = case["attack"]
    if "vary" not in case:
        return [base]
    (field, values), = case["vary"].items()
    made = []
    for value in values:
        one = copy.deepcopy(base)
        one.update(value if field == "*" else {field: value})
        if isinstance(value, str):
            one = json.loads(json.dumps(one).replace("{%s}" % field, json.dumps(value)[1:-1]))
            one[field] = value
        made.append(one)
    return made


def load(wanted: set[str] | None = None) -> tuple[dict, list[Case]]:
    """The policies by name, and the cases (only those of these ids, when given)."""
    data = json.loads((HERE / "catalogue.json").read_text())
    cases = []
    for case in data["cases"]:
        if wanted is not None and case["id"] not in wanted:
            continue
        control = data["controls"][case["control"]] if isinstance(case["control"], str) else case["control"]
        steps = [Step("control", control["step"])] + [Step("attack", step) for step in attacks_of(case)]
        cases.append(Case(case["id"], case["what"], case.get("policy", "base"), case, control, steps))
    assert len({c.id for c in cases}) == len(cases), "an id is used twice"
    if wanted is not None:
        assert wanted == {c.id for c in cases}, wanted - {c.id for c in cases}
    return data["policies"], cases


@dataclasses.dataclass
class Sides:
    """What was seen outside of the guest: functions of a token, and the audit's records."""
    servers: object  # token -> text of the connections that had it
    places: object  # token -> the addresses and ports of those servers
    guard: object  # token -> number of frames with it that came past the guard
    trap: object  # token -> True when a service of the host's side read it
    audit: list[dict]
    tracked: int


def judge(case: Case, sides: Sides) -> None:
    """Fills case.problems; empty = every attack failed as it should and the control arrived."""
    case.problems = []
    for step in case.steps:
        if not step.saw:
            case.problems.append(f"{step.role}: did not run")
        elif step.saw.startswith("broke"):
            case.problems.append(f"{step.role}: {step.saw}")
        elif step.role == "control":
            _judge_control(case, step, sides)
        else:
            _judge_attack(case, step, sides)
    if "audit" in case.data and not any(_matches(record, case.data["audit"]) for record in sides.audit):
        case.problems.append(f"audit: no record with {case.data['audit']}")
    if "tracked" in case.data and sides.tracked != case.data["tracked"]:
        case.problems.append(f"host: the kernel tracks {sides.tracked} connections of the guest")


def _judge_control(case: Case, step: Step, sides: Sides) -> None:
    if not step.saw.startswith(tuple(case.control["sees"])):
        case.problems.append(f"control: the guest saw \"{step.saw}\" instead of {case.control['sees']}")
    where = case.control["arrives"]
    if where == "servers":
        text = sides.servers(step.token)
        if not text:
            case.problems.append("control: did not arrive at the servers")
        _check_text(case, "control", text, case.control)
    if where == "guard" and not sides.guard(step.token):
        case.problems.append("control: the lawful frame did not come past the guard")


def _judge_attack(case: Case, step: Step, sides: Sides) -> None:
    shown = json.dumps(step.step)[:200]
    if not step.saw.startswith(tuple(case.data["sees"])):
        case.problems.append(f"attack: the guest saw \"{step.saw}\" instead of {case.data['sees']}: {shown}")
    if case.data.get("unseen") and "seen" in step.saw:
        case.problems.append(f"attack: the guest got what it must not see: {shown}")
    if sides.trap(step.token):
        case.problems.append(f"attack: reached a service of the host's side: {shown}")
    passed = sides.guard(step.token)
    if step.step["do"] == "frame" and case.data.get("guard") != "any" and passed > case.data.get("guard_at_most", 0):
        case.problems.append(f"attack: {passed} frames came past the guard: {shown}")
    text = sides.servers(step.token)
    wanted = case.data.get("servers", "nothing")
    if wanted == "nothing" and text:
        case.problems.append(f"attack: ARRIVED: {shown}: {text[:300]!r}")
    elif isinstance(wanted, dict):
        _check_text(case, "attack", text, wanted)
        places = sides.places(step.token)
        if "only_at" in wanted and places != {wanted["only_at"]}:
            case.problems.append(f"attack: arrived at {sorted(places)}: {shown}")


def _check_text(case: Case, role: str, text: str, wanted: dict) -> None:
    for word in wanted.get("without", []):
        if word.lower() in text.lower():
            case.problems.append(f"{role}: \"{word}\" arrived: {text[:400]!r}")
    for word in wanted.get("with", []):
        if word not in text:
            case.problems.append(f"{role}: \"{word}\" did not arrive: {text[:400]!r}")
    if len(text) > wanted.get("bytes_below", len(text)):
        case.problems.append(f"{role}: {len(text)} bytes arrived")


def _matches(record: dict, wanted: dict) -> bool:
    return all(record.get(key, 0) > 0 if value == "some" else record.get(key) == value for key, value in wanted.items())
