"""Makes the sources of the mutation run out of mutations.json and the real ones: mutate.py OUTPUT-FOLDER.

A mutation is an exact piece of source and what stands there instead; {on} becomes "is this mutation chosen". So the shipped
sources know nothing of it, and a defence that was rewritten makes this step fail until its mutation is rewritten too. With
`--files` prints the C++ files that mutations touch. Rules of nft are mutated in memory by the test."""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


def load():
    return json.loads((HERE / "mutations.json").read_text())


def edits_of(data):
    for edit in data["selectors"]:
        yield "selector", edit
    for mutation in data["mutations"]:
        for edit in mutation["edits"]:
            yield mutation["name"], dict(edit, file=edit.get("file", mutation.get("file")))


def mutated(text, name, edit):
    if text.count(edit["find"]) != edit.get("times", 1):
        sys.exit(f"{edit['file']}: the mutation {name} wants to change this, which is there {text.count(edit['find'])} times:\n"
                 f"{edit['find']}\nSay in test/security/mutations.json how the defence is taken away now.")
    return text.replace(edit["find"], edit["replace"].replace("{on}", f'::mutation::on("{name}")'))


def sources(data):
    """file → text, of the C++ files."""
    made = {}
    for name, edit in edits_of(data):
        if edit["file"].endswith(".cpp"):
            text = made.get(edit["file"]) or '#include "mutation.hpp"\n\n' + (ROOT / edit["file"]).read_text()
            made[edit["file"]] = mutated(text, name, edit)
    return made


def rules(data, name):
    """The text of slot.nft with one mutation in it."""
    text = (ROOT / "src/hostd/slot.nft").read_text()
    for mutation in data["mutations"]:
        if mutation["name"] == name:
            for edit in mutation["edits"]:
                text = mutated(text, name, dict(edit, file="src/hostd/slot.nft"))
    return text


def main():
    data = load()
    if sys.argv[1] == "--files":
        print(";".join(sorted({e["file"] for _, e in edits_of(data) if e["file"].endswith(".cpp")})), end="")
        return
    for mutation in data["mutations"]:
        if mutation.get("file") == "src/hostd/slot.nft":
            rules(data, mutation["name"])
    for path, text in sources(data).items():
        output = pathlib.Path(sys.argv[1]) / path
        output.parent.mkdir(parents=True, exist_ok=True)
        if not output.exists() or output.read_text() != text:
            output.write_text(text)


if __name__ == "__main__":
    main()
