#!/usr/bin/env python3
"""Writes the table of a result of compare.py, lives.py or many.py into docs/benchmarks.md, between its two marks: bench/table.py RESULT.json

Every figure comes from the document; nothing is typed in by hand. `--check` writes nothing and fails when the
page does not show the document."""
import json
import pathlib
import sys

import gateway_table

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- {} made by bench/table.py from {} -->", "<!-- end of what was made -->"


def ms(value):
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def part(document, name):
    return next((row for row in document["path_ms"] if row["part"] == name), None)


def cells(row):
    if "not_measured" in row:
        return [row["name"], "", "", "", "", f"not measured: {row['not_measured']}"]
    if row["kind"] == "peer":
        out = row["first_output_ms"]
        figures = [ms(out["p50"]), ms(out["p90"])] if out["n"] else ["", ""]
        return [row["name"], "", "", *figures, f"{row['success_rate'] * row['count']:.0f} of {row['count']}"]
    document = row["document"]
    running, first = part(document, "answer: running"), part(document, "first output")
    figures = [ms(one[key]) if one else "" for one in (running, first) for key in ("p50", "p90")]
    went = ", ".join(f"{n} by {way}" for way, n in document["started_by"].items())
    success = f"{document['success_rate'] * document['count']:.0f} of {document['count']}"
    expected = set(document["started_by"]) == {row["name"]}
    return [f"space, {row['name']}", *figures, success if expected else f"{success}; {went}"]


def where(document, more=""):
    host = document["host"]
    return (f"{document['at'][:10]}; {host['cores']} shared cores, {host['processor'].replace('(R)', '')}, kernel {host['kernel']}, load "
            f"{host['load']} before and {host.get('load_after', '?')} after; {document['build']} build; {more}"
            "guest 1 vCPU, memory the template's (512 MiB); everything in the page cache; one at a time.")


def compared(document):
    ours = [row["document"] for row in document["rows"] if row["kind"] == "space"]
    lines = [
        where(document, f"driver {ours[0]['driver']} with {ours[0]['accelerator']}; " if ours else ""),
        "",
        "Start event: the request leaves the client (ours), the command is executed (peers). End events: the client has the answer",
        "`running`; the client has read the first output of a first command, `/bin/echo first`. Milliseconds.",
        "",
        "| create by | running p50 | p90 | first output p50 | p90 | succeeded |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in document["rows"]]
    lines += ["", "What the peers do: " + "; ".join(f"{row['name']}: {row['what']}" for row in document["rows"] if row["kind"] == "peer") + "."]
    return lines + wanted(document) + steps(document)


STEPS = {
    "placed": "placed by the API",
    "committed": "row, operation and event committed",
    "worker.admitted": "admitted by the worker",
    "worker.disk_cloned": "disk cloned",
    "worker.slot_taken": "slot taken",
    "worker.claimed": "claimed: journal and disk have the sandbox's name",
    "worker.vmm_started": "VMM launched in its jail",
    "worker.restored": "VMM up, its state loaded, the machine goes on",
    "worker.continued": "the machine goes on",
    "worker.agent_answered": "the agent answered for the first time",
    "worker.initialised": "the agent took identity, clock, randomness and token, and answered the nonce",
    "started": "noted by the worker, known to the API",
    "answer: running": "`running` committed, and the answer at the client",
    "first output": "first output of `/bin/echo`",
    "a second command by itself": "(a second command by itself)",
}


def steps(document):
    """Where the time of each of our ways goes."""
    ways = [row for row in document["rows"] if row["kind"] == "space"]
    lines = ["", "Step by step, milliseconds since the request left, median (p90):", "",
             "| until | " + " | ".join(row["name"] for row in ways) + " |", "|---" * (len(ways) + 1) + "|"]
    for name, words in STEPS.items():
        found = [part(row["document"], name) for row in ways]
        if any(found):
            lines.append(f"| {words} | " + " | ".join(f"{one['p50']:,.1f} ({one['p90']:,.1f})" if one else "" for one in found) + " |")
    return lines


def wanted(document):
    """What issue and design ask of an idle host, beside what this run shows."""
    running = {row["name"]: part(row["document"], "answer: running") for row in document["rows"] if row["kind"] == "space"}
    verdict = lambda good: "reached" if good else "**not reached**"
    lines = ["", "| wanted (idle host) | this run | |", "|---|---|---|"]
    if warm := running.get("warm machine"):
        lines.append(f"| a warm claim until `running`: p50 ≤ 20 ms | {warm['p50']:.1f} | {verdict(warm['p50'] <= 20)} |")
        lines.append(f"| its p90 ≤ 40 ms | {warm['p90']:.1f} | {verdict(warm['p90'] <= 40)} |")
    if (base := running.get("base snapshot")) and (cold := running.get("cold boot")):
        times = cold["p50"] / base["p50"]
        lines.append(f"| from the base snapshot: at most 1/12 of the cold boot | 1/{times:.1f} | {verdict(times >= 12)} |")
    return lines


def lived(document):
    """Each figure beside its yardstick, with what is wanted of their quotient."""
    lines = [where(document, f"driver {document['driver']} with {document['accelerator']}; "), "",
             "Start event: the request leaves the client. End event: the client has the whole answer. Milliseconds, median (p90) of what succeeded.", "",
             "| what | it took | beside | took | quotient | wanted | succeeded |", "|---|---|---|---|---|---|---|"]

    def line(what, one, beside, other, wanted):
        share = lambda s: f"{ms(s['p50'])} ({ms(s['p90'])})" if s["n"] else "–"
        quotient = f"{one['p50'] / other['p50']:.2f}" if one["n"] and other["n"] and other["p50"] else "–"
        lines.append(f"| {what} | {share(one)} | {beside} | {share(other)} | {quotient} | {wanted} | {one['n']} of {document['count']} |")

    for name, row in document.get("first_use", {}).items():
        line(f"first `{name}` of a claimed warm machine", row["first"], "the same in a long-used sandbox", row["long_used"],
             "≤ 1.3" if name == "direct" else "≤ 1.5")
    if "suspend" in document:
        s = document["suspend"]
        line(f"suspend, {s['dirty_mib']} MiB changed", s["suspend_ms"], f"writing {s['dirty_mib']} MiB with fsync to the pool", s["write_fsync_ms"], "≤ 2")
        line("resume, until `running`", s["resume_ms"], "create from the base snapshot", s["create_ms"], "≤ 2")
        if s["suspended_mib"]["n"]:
            lines.append(f"| bytes of that suspend, MiB | {s['suspended_mib']['p50']:.1f} | changed by the test | {s['dirty_mib']} | "
                         f"{s['suspended_mib']['p50'] / s['dirty_mib']:.2f} | ≤ 1.2 | {s['suspended_mib']['n']} of {document['count']} |")
    if "fork" in document:
        f = document["fork"]
        line(f"fork of one, {f['dirty_mib']} MiB changed, until its copy runs", f["fork_ms"], "create from the base snapshot",
             document["suspend"]["create_ms"], "–")
    for name in ("fork", "fork_large"):
        f = document.get(name)
        if f and f.get("silence_ms", {}).get("n"):
            stood, told, kept = f["silence_ms"]["p50"] - f["usual_silence_ms"]["p50"], f["told_ms"], f["kept_mib"]["p50"]
            lines.append(f"| parent stands still for a fork, {f['dirty_mib']} MiB changed, {kept:.0f} MiB kept, seen from outside | {ms(max(stood, 0))} "
                         f"(its worker: {ms(told['p50'])}) | 50 ms + 25 ms per 100 MiB | {ms(50 + kept / 4)} | {max(stood, 0) / (50 + kept / 4):.2f} | ≤ 1 | "
                         f"{f['silence_ms']['n']} of {document['count']} |")
    if document.get("errors"):
        lines += ["", "Failed: " + "; ".join(document["errors"][:3])]
    return lines


def touched(burst):
    """What was done to the host's free memory before a burst, and what it costs to touch."""
    if not burst.get("touched_mib"):
        return ""
    rate = burst["touch_mb_per_s"]
    return (f" Before both, a process touched {burst['touched_mib']:,} MiB of the host's memory and gave them back ({rate['first']:,} MB per second "
            f"of processor time when it did so first, {rate['again']:,} when again).")


def crowded(document):
    """A hundred at once, hundreds in a row, and the memory of idle ones."""
    lines = [where(document, f"driver {document['driver']} with {document['accelerator']}; ")]
    verdict = lambda good: "reached" if good else "**not reached**"
    if b := document.get("burst"):
        allowed = 1.3 * b["count"] * b["cpu_of_one_ms"] / document["host"]["cores"]
        lines += ["", f"{b['count']} creates at the same moment, none by a warm machine; limits of memory, vCPUs and disk raised, because what is "
                  "reserved for so many exceeds such a host. One create, of ten in a row, takes "
                  f"{ms(b['one_ms']['p50'])} ms and {b['cpu_of_one_ms']:,.0f} ms of the host's processors." + touched(b), "",
                  "| wanted | measured | |", "|---|---|---|",
                  f"| none fails | {b['succeeded']} of {b['count']} succeeded | {verdict(b['succeeded'] == b['count'])} |",
                  f"| wall time ≤ 1.3 × {b['count']} × the processor time of one ÷ cores = {allowed:,.0f} ms | {b['wall_ms']:,} ms, {b['wall_ms'] / allowed * 1.3:.2f} × "
                  f"| {verdict(b['wall_ms'] <= allowed)} |",
                  f"| nothing stays when all are deleted | {'nothing' if b['nothing_stays'] else 'something'} | {verdict(b['nothing_stays'])} |",
                  f"| private pages of an idle guest ≤ 8 MiB | {b['memory']['guest_mib']['p50']:.1f} MiB (p90 {b['memory']['guest_mib']['p90']:.1f}), the rest of its "
                  f"emulator {b['memory']['rest_mib']['p50']:.1f} MiB | {verdict(b['memory']['guest_mib']['p90'] <= 8)} |"]
    if r := document.get("row"):
        quotient = r["create_last_ms"]["p50"] / r["create_first_ms"]["p50"]
        resident = [sum(one["resident_kib"] for one in r["programs"][at].values()) / 1024 for at in (1, -1)]
        files = [sum(one["files"] for one in r["programs"][at].values()) for at in (1, -1)]
        lines += ["", f"{r['count']} creates and deletes in a row, by the base snapshot:", "", "| wanted | measured | |", "|---|---|---|",
                  f"| the last tenth as quick as the first | create {ms(r['create_first_ms']['p50'])} ms in the first, {ms(r['create_last_ms']['p50'])} in the last, "
                  f"delete {ms(r['delete_first_ms']['p50'])} and {ms(r['delete_last_ms']['p50'])} | {verdict(quotient <= 1.1)} |",
                  f"| nothing stays | {r['succeeded']} of {r['count']} succeeded; {'nothing held' if r['held_before'] == r['held_after'] else r['held_after']}; the five programs "
                  f"after a tenth and at the end: {resident[0]:.1f} and {resident[1]:.1f} MiB resident, {files[0]} and {files[1]} open files | "
                  f"{verdict(r['succeeded'] == r['count'] and r['held_before'] == r['held_after'])} |"]
    if rows := document.get("memory"):
        lines += ["", "Private memory of a clone of 512 MiB, MiB, and what programs cost in it, ms (medians), by the size of the emulator's translation cache "
                  "(`translation_cache_mib`):", "",
                  "| cache | guest, idle | emulator, idle | guest, after use | emulator, after use | first `bash -l -c`, later | first `python3 -c`, later |",
                  "|---|---|---|---|---|---|---|"]
        for row in rows:
            uses = [f"{ms(row['uses'][name]['first_ms']['p50'])}, {ms(row['uses'][name]['later_ms']['p50'])}" for name in ("bash -l -c", "python3 -c")]
            figures = [f"{row[when][what]['p50']:.1f}" for when in ("idle", "used") for what in ("guest_mib", "rest_mib")]
            lines.append("| " + " | ".join([f"{row['translation_cache_mib']} MiB", *figures, *uses]) + " |")
    if document.get("errors"):
        lines += ["", "Failed: " + "; ".join(document["errors"][:3])]
    return lines


def kind_of(document):
    """A run of lives.py that measured first uses alone has a table of its own."""
    return "first use" if document["what"] == "lives" and not {"suspend", "fork"} & set(document) else document["what"]


def made(document, source):
    lines = {"compare": compared, "lives": lived, "many": crowded, "gateway": gateway_table.lines}[document["what"]](document)
    return "\n".join([BEGIN.format(kind_of(document), source), *lines, END])


def main():
    source = pathlib.Path(sys.argv[-1])
    document = json.loads(source.read_text())
    text = made(document, source.name)
    page = PAGE.read_text()
    begin = page.index(f"<!-- {kind_of(document)} made by")
    end = page.index(END, begin) + len(END)
    new = page[:begin] + text + page[end:]
    if "--check" in sys.argv:
        return 0 if new == page else "docs/benchmarks.md does not show " + source.name
    PAGE.write_text(new)


if __name__ == "__main__":
    sys.exit(main())
