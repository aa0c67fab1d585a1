#!/usr/bin/env python3
"""Rules of this tree that no compiler checks. `./dev tidy` and ctest run it; a finding is a failure.

A line may be excused with a comment that says why:  // tidy-allow(RULE): reason
Rules: arrows, sql, heavy, banned, length, unbuilt, todo, ascii, spec, faults, size, paths.
"""
import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800


@dataclass(frozen=True, order=True)
class Finding:
    rule: str
    path: str
    line: int
    text: str


@dataclass
class Source:
    """One C++ file: as written, and with comments and the contents of literals blanked out."""

    path: str  # relative to the root, with slashes
    lines: list
    code: list  # comments and literal contents are spaces
    literals: list  # (line, text) of string literals

    @property
    def folder(self):
        parts = self.path.split("/")
        return parts[1] if parts[0] == "src" and len(parts) > 2 else ""

    @property
    def is_test(self):
        return self.path.startswith("test/") or re.search(r"(_test\.cpp|/testing\.[ch]pp|/testing/.*)$", self.path) is not None


# One alternative per thing in which quotes, braces and slashes mean nothing.
TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)")"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<char>(?<![0-9a-zA-Z])'(?:\\.|[^'\\\n])+')""",
    re.DOTALL,
)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def parse(path, text):
    literals = []

    def replace(match):
        whole = match.group(0)
        if match.lastgroup != "comment" and not match.group("comment"):
            line = text.count("\n", 0, match.start()) + 1
            # An include's file name is no literal of the program.
            start = text.rfind("\n", 0, match.start()) + 1
            if text[start : match.start()].strip().startswith("#include"):
                return whole
            if not match.group("char"):
                literals.append((line, whole))
            return '"' + blank(whole[1:-1]) + '"'
        return blank(whole)

    code = TOKENS.sub(replace, text)
    return Source(path, text.split("\n"), code.split("\n"), literals)


def allowed(source, line, rule):
    around = source.lines[max(0, line - 2) : line]
    return any(f"tidy-allow({rule}):" in text for text in around)


# --- folders and their arrows -----------------------------------------------------------------------------
def folders(cmake_text):
    """`space_folder(name DEPS … TEST_DEPS …)` in order → {name: (deps, test deps)}, libraries of ours only."""
    found = {}
    for body in re.findall(r"^space_folder\(([^)]*)\)", cmake_text, re.MULTILINE):
        words = body.split()
        lists = {"DEPS": [], "TEST_DEPS": []}
        current = None
        for word in words[1:]:
            if word in lists:
                current = word
            elif word.startswith("space_"):
                lists[current].append(word.removeprefix("space_"))
        found[words[0]] = (lists["DEPS"], lists["TEST_DEPS"])
    return found


def reachable(name, table):
    seen, todo = set(), [name]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        todo += table.get(one, ([], []))[0]
    return seen


def check_arrows(sources, cmake_text):
    table = folders(cmake_text)
    order = list(table)
    for name, (deps, test_deps) in table.items():
        for dep in deps:
            if dep not in order[: order.index(name)]:
                yield Finding("arrows", "src/CMakeLists.txt", 0, f"{name} depends on {dep}, which is not above it")
        del test_deps
    for source in sources:
        if source.folder not in table:
            continue
        may = reachable(source.folder, table)
        if source.is_test:
            for dep in table[source.folder][1]:
                may |= reachable(dep, table)
        for number, line in enumerate(source.code, 1):
            match = re.match(r'\s*#include "([a-z_]+)/', line)
            if match and match[1] not in may and not allowed(source, number, "arrows"):
                yield Finding("arrows", source.path, number, f"{source.folder} may not include {match[1]}/")


# --- what may stand where ---------------------------------------------------------------------------------
SQL = re.compile(
    r"\b(select\s.{1,400}?\sfrom|insert\s+into|update\s+\w+\s+set|delete\s+from|create\s+(table|index)|alter\s+table)\s",
    re.IGNORECASE | re.DOTALL,
)


def check_sql(sources):
    for source in sources:
        if source.folder in ("", "store") or source.is_test:
            continue
        for line, text in source.literals:
            if SQL.search(text) and not allowed(source, line, "sql"):
                yield Finding("sql", source.path, line, "SQL belongs into src/store")


# Header prefix → the files that may include it. Everything listed here stays out of every header.
HEAVY = {
    "boost/beast": r"src/(http|third_party)/",
    "boost/asio/co_spawn": r"src/async/",
    "boost/asio/experimental": r"src/async/",
    "boost/asio/ssl": r"src/tls/",
    "openssl/": r"(src|test)/",
    "libpq-fe.h": r"src/store/",
    "CLI/": r"src/cli/parse(_lives|_network|_selftest|_usage)?\.cpp$",
    "spdlog/": r"src/base/",
    "nftables/": r"src/hostd/",
    "seccomp.h": r"src/(hostd|gateway|broker)/",
    "zlib.h": r"(src|test)/",
    "nghttp2/": r"src/http/",
}


def check_heavy(sources):
    for source in sources:
        if source.path.startswith("src/third_party/"):
            continue
        for number, line in enumerate(source.lines, 1):
            match = re.match(r"\s*#include <([^>]+)>", line)
            if not match or allowed(source, number, "heavy"):
                continue
            for prefix, places in HEAVY.items():
                if not match[1].startswith(prefix):
                    continue
                if source.path.endswith(".hpp"):
                    yield Finding("heavy", source.path, number, f"<{match[1]}> belongs into a .cpp")
                elif not re.match(places, source.path):
                    yield Finding("heavy", source.path, number, f"<{match[1]}> is for {places} only")


# (pattern, where it is right, why it is banned)
BANNED = [
    (r"\basio::detached\b|\bdetached_t\b", r"$^", "detached work: use a TaskGroup"),
    (r"\bco_spawn\s*\(", r"src/async/", "co_spawn is for src/async: use a TaskGroup"),
    (r"awaitable_operators", r"$^", "operator|| loses errors: use async::race or with_deadline"),
    (r"(?<![\w.>:])(std::)?system\s*\(", r"$^", "no shell: run a program with its arguments"),
    (r"(?<![\w.>:])popen\s*\(", r"$^", "no shell: run a program with its arguments"),
    (r"\bstd::(jthread|thread|async)\b(?!::)", r"src/async/", "threads are for src/async: run_blocking"),
    (r"\bthis_thread::sleep|(?<![\w.>:])u?sleep\s*\(", r"$^", "wait for what you wait for; async::sleep_for in a loop"),
    (r"\b(steady|system|high_resolution)_clock::now\s*\(", r"src/base/clock\.cpp", "time comes from base::Clock"),
    (r"(?<![\w.>:])(strcpy|strcat|sprintf|vsprintf|gets|tmpnam|mktemp)\s*\(", r"$^", "has no bound"),
    (r"\bip::tcp::resolver\b", r"$^", "a resolver thread cannot be cancelled: net::connect_host"),
    (r"\?[^;:]*\bco_await\b", r"$^", "no co_await inside ?:"),
    (r"\b(TRY|CO_TRY)\s*\(", r"$^", "no TRY macro: the if line is where context is added"),
]


def check_banned(sources):
    for source in sources:
        if source.path.startswith("src/third_party/"):
            continue
        for number, line in enumerate(source.code, 1):
            for pattern, places, why in BANNED:
                if not re.search(pattern, line) or re.match(places, source.path) or allowed(source, number, "banned"):
                    continue
                if source.is_test and re.search("threads|sleep|Clock", why):
                    continue  # tests play the outside world, which has threads and is slow
                yield Finding("banned", source.path, number, f"{line.strip()[:60]}: {why}")


# --- sizes ------------------------------------------------------------------------------------------------
NOT_A_FUNCTION = re.compile(r"^\s*(namespace|class|struct|enum|union|extern|inline namespace|template\s*<[^>]*>\s*(class|struct))\b")


def functions(source):
    """(first line, last line, head) of the function bodies at namespace and class level, by their indentation."""
    code = source.code
    number = 0
    while number < len(code):
        line = code[number]
        if not line.rstrip().endswith("{") or NOT_A_FUNCTION.match(line):
            number += 1
            continue
        # The head reaches up to the end of the statement before.
        first = number
        while first > 0 and code[first - 1].strip() and not re.search(r"[;{}]\s*$|^\s*(public|private|protected):|^\s*#", code[first - 1]):
            first -= 1
        head = " ".join(part.strip() for part in code[first : number + 1])
        indent = len(code[first]) - len(code[first].lstrip())
        if "(" not in head or indent > 4 or NOT_A_FUNCTION.match(head) or re.search(r"=\s*\{$", head):
            number += 1
            continue
        depth, last = 0, number
        while last < len(code):
            depth += code[last].count("{") - code[last].count("}")
            if depth <= 0:
                break
            last += 1
        yield first + 1, last + 1, head
        number = last + 1


def check_length(sources):
    for source in sources:
        for first, last, head in functions(source):
            length = last - first + 1
            if length > FUNCTION_LINES_MAX and not allowed(source, first, "length"):
                yield Finding("length", source.path, first, f"{length} lines: {head[:80]}")


def check_size(sources):
    for source in sources:
        if len(source.lines) > FILE_LINES_MAX and "tidy-allow(size):" not in "\n".join(source.lines[:20]):
            yield Finding("size", source.path, 1, f"{len(source.lines)} lines: wants a second noun")


# --- the tree ---------------------------------------------------------------------------------------------
def check_unbuilt(sources, cmake_text, compiled):
    """`compiled`: relative paths of compile_commands.json, or None when there is no build."""
    known = set(folders(cmake_text))
    for source in sources:
        if not source.path.endswith(".cpp"):
            continue
        parts = source.path.split("/")
        if source.path.startswith("src/main/"):
            name = re.escape(parts[-1])
            if not re.search(rf"^\s*(space_program\(\S+ {name}|add_executable\([^)]*main/{name})\b", cmake_text, re.MULTILINE):
                yield Finding("unbuilt", source.path, 1, "no space_program line in src/CMakeLists.txt builds it")
        elif source.path.startswith("src/") and source.folder not in known | {"third_party"}:
            yield Finding("unbuilt", source.path, 1, f"src/CMakeLists.txt has no space_folder({source.folder})")
        elif source.path.startswith("src/") and len(parts) > 3 and "/".join(parts[1:]) not in cmake_text:
            yield Finding("unbuilt", source.path, 1, "folders below src/ are flat: no target looks deeper")
        elif compiled is not None and source.path not in compiled and not source.path.endswith("_fuzz.cpp"):
            yield Finding("unbuilt", source.path, 1, "no target builds it")


def check_todo(texts):
    for path, text in texts.items():
        for number, line in enumerate(text.split("\n"), 1):
            match = re.search(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))", line)
            if match and "tidy-allow(todo):" not in line:
                yield Finding("todo", path, number, f"{match[1]} without an issue number: write {match[1]}(#12)")


def check_ascii(sources):
    for source in sources:
        for number, line in enumerate(source.code, 1):
            bad = re.search(r"[^\x00-\x7f]", line)
            if bad:
                yield Finding("ascii", source.path, number, f"{bad[0]!r} outside comments and literals")


def check_paths(texts):
    # Written apart, or this file would find itself.
    pattern = re.compile(r"(?<![\w.~-])/" + r"(work|farm)/")
    for path, text in texts.items():
        for number, line in enumerate(text.split("\n"), 1):
            if pattern.search(line):
                yield Finding("paths", path, number, "a path of somebody's machine")


def test_names(sources, texts):
    names = set()
    for source in sources:
        for suite, name in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", "\n".join(source.code)):
            names.add(f"{suite}.{name}")
    for path, text in texts.items():
        if path.endswith(".py"):
            names.add(path)
            for name in re.findall(r"^\s*(?:async )?def (test_\w+)", text, re.MULTILINE):
                names.add(f"{path}::{name}")
        if path.endswith(".sh"):
            names.add(path)
    return names


def check_spec(sources, texts):
    spec = texts.get("docs/spec.md")
    if spec is None:
        return
    known = test_names(sources, texts)
    for number, line in enumerate(spec.split("\n"), 1):
        for name in re.findall(r"`([A-Z]\w+\.[A-Z]\w+|(?:test|tools|bench)/[\w/.-]+\.(?:py|sh)(?:::\w+)?)`", line):
            if name not in known:
                yield Finding("spec", "docs/spec.md", number, f"there is no test {name}")
        # A row of the table of promises: it names a test or says that it has none yet.
        if line.startswith("| ") and not re.match(r"\| *(-+|promise)\b", line, re.IGNORECASE) and "`" not in line and "pending" not in line:
            if not re.match(r"\|[\s|:-]+$", line):
                yield Finding("spec", "docs/spec.md", number, "a promise with neither a test nor \"pending\"")


def check_reasons(texts):
    """Files, and what stands in them, that are named as reasons why an attack is no case of the suite."""
    where = "test/security/elsewhere.json"
    for number, line in enumerate(texts.get(where, "").split("\n"), 1):
        for path, name in re.findall(r"\b((?:src|test)/[\w/.-]+\.(?:py|cpp|hpp))(?:::(\w+))?", line):
            if path not in texts:
                yield Finding("reasons", where, number, f"there is no {path}")
            elif name and not re.search(rf"\b{name}\b", texts[path]):
                yield Finding("reasons", where, number, f"{path} has no {name}")


# The program by whose name a folder's fault points may go.
PROGRAM_OF = {"controlplane": "api"}


def check_faults(sources):
    """Fault points have names folder.what.step, each in one place, and those that a table declares exist."""
    points, declared = {}, []
    for source in sources:
        if source.is_test or source.path.startswith("src/base/"):
            continue
        text = "\n".join(source.lines)
        for match in re.finditer(r'SPACE_FAULT\(\s*"([^"]*)"', text):
            number = text.count("\n", 0, match.start()) + 1
            name = match[1]
            if not re.fullmatch(r"[a-z]+(\.[a-z0-9_]+){2,3}", name) or name.split(".")[0] not in (source.folder, PROGRAM_OF.get(source.folder)):
                yield Finding("faults", source.path, number, f"{name}: wanted {source.folder}.what.step")
            if name in points:
                yield Finding("faults", source.path, number, f"{name} is also in {points[name]}")
            points[name] = f"{source.path}:{number}"
        if source.folder == "domain":
            for line, literal in source.literals:
                if re.fullmatch(r'"(worker|hostd|controlplane|controller|store|proxy)(\.[a-z0-9_]+){2,3}"', literal):
                    declared.append((source.path, line, literal.strip('"')))
    for path, line, name in declared:
        if name not in points:
            yield Finding("faults", path, line, f"no SPACE_FAULT is called {name}")


# --- main -------------------------------------------------------------------------------------------------
def collect(root):
    texts = {}
    for pattern in ("src/**/*", "test/**/*", "bench/**/*", "tools/**/*", "images/**/*", "deploy/**/*", "docs/**/*", "api/**/*", "*", ".ci/*"):
        for path in root.glob(pattern):
            relative = path.relative_to(root).as_posix()
            if not path.is_file() or relative.startswith("build/") or "/__pycache__/" in relative:
                continue
            if path.suffix in (".cpp", ".hpp", ".py", ".sh", ".md", ".txt", ".sql", ".yaml", ".json", "") and path.stat().st_size < 1 << 20:
                try:
                    texts[relative] = path.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    continue
    return texts


def compiled_files(root, build):
    commands = build / "compile_commands.json" if build else None
    if not commands or not commands.exists():
        return None
    return {Path(one["file"]).resolve().relative_to(root).as_posix() for one in json.loads(commands.read_text())
            if Path(one["file"]).resolve().is_relative_to(root)}


def findings_of(root, build=None):
    texts = collect(root)
    sources = [parse(path, text) for path, text in sorted(texts.items())
               if path.endswith((".cpp", ".hpp")) and not path.startswith("src/third_party/json")]
    cmake = texts.get("src/CMakeLists.txt", "")
    # This tool and its test quote what they look for.
    prose = {path: text for path, text in texts.items() if not path.startswith("tools/tidy")}
    yield from check_arrows(sources, cmake)
    yield from check_sql(sources)
    yield from check_heavy(sources)
    yield from check_banned(sources)
    yield from check_length(sources)
    yield from check_size(sources)
    yield from check_unbuilt(sources, cmake, compiled_files(root, build))
    yield from check_todo(prose)
    yield from check_ascii(sources)
    yield from check_paths(prose)
    yield from check_spec(sources, texts)
    yield from check_reasons(texts)
    yield from check_faults(sources)


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    options.add_argument("--build", type=Path, help="a build directory: also finds files that no target compiles")
    arguments = options.parse_args()
    found = sorted(findings_of(arguments.root.resolve(), arguments.build))
    for rule in sorted({one.rule for one in found}):
        print(f"{rule}:")
        for one in found:
            if one.rule == rule:
                print(f"  {one.path}:{one.line}: {one.text}")
    print(f"tidy: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
