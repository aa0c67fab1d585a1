#!/usr/bin/env python3
"""clang-tidy over changed files (or all), two at a time, remembering clean files by content.

A file counts as changed when it differs from --base (a commit; default: the newest commit of the remote's
branch that is not the checked-out one, else 20 commits back) or is not committed. A file is expensive (about
15 CPU seconds), hence the memory in ~/.cache and the time limit; what the limit left out is listed, never
silently dropped.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "clang-tidy-19"


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split("\n") if done.returncode == 0 else []


def base_commit():
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main")
    if base and head and base[0] and base[0] != head[0]:
        return base[0]
    older = git("rev-list", "--max-count=21", "HEAD")
    older = [one for one in older if one]
    # A history shorter than that: the empty tree, so that everything counts as changed.
    return older[-1] if len(older) == 21 else "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def changed_files(base):
    """Newest change first: when time is short, what just changed is what gets looked at."""
    names = []
    for line in git("status", "--porcelain", "--untracked-files=all"):
        names.append(line[3:])
    names += git("log", "--name-only", "--format=", f"{base}..HEAD") if not base.startswith("4b825") else git(
        "log", "--name-only", "--format=")
    names += git("diff", "--name-only", base)
    return list(dict.fromkeys(name for name in names if name))


def includes(path, seen):
    if path in seen or not path.exists():
        return
    seen.add(path)
    for name in re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(errors="replace"), re.MULTILINE):
        for folder in (ROOT / "src", ROOT, path.parent):
            if (folder / name).exists():
                includes((folder / name).resolve(), seen)
                break


def fingerprint(path, command):
    files = set()
    includes(path, files)
    digest = hashlib.sha256()
    version = subprocess.run([PROGRAM, "--version"], capture_output=True).stdout
    for part in (version, command.encode(), (ROOT / ".clang-tidy").read_bytes(), Path(__file__).read_bytes()):
        digest.update(hashlib.sha256(part).digest())
    for one in sorted(files):
        digest.update(hashlib.sha256(one.read_bytes()).digest())
    return digest.hexdigest()


def check(path, build):
    started = time.monotonic()
    done = subprocess.run([PROGRAM, "-quiet", "-p", str(build), str(path)], capture_output=True, text=True, cwd=ROOT)
    text = "\n".join(line for line in (done.stdout + done.stderr).split("\n") if "warnings generated" not in line)
    return done.returncode == 0, text.strip(), time.monotonic() - started


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--all", action="store_true", help="all files, without a time limit")
    options.add_argument("--base", default="", help="files changed since this commit")
    options.add_argument("--minutes", type=float, default=5, help="time limit (default 5)")
    options.add_argument("--build", type=Path, default=ROOT / "build/dev")
    arguments = options.parse_args()

    commands = {one["file"]: one["command"] for one in json.loads((arguments.build / "compile_commands.json").read_text())}
    wanted = sorted(commands) if arguments.all else [str(ROOT / name) for name in changed_files(arguments.base or base_commit())]
    wanted = [name for name in wanted if name in commands and "/third_party/" not in name]

    memory = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "space-clang-tidy"
    memory.mkdir(parents=True, exist_ok=True)
    stop = float("inf") if arguments.all else time.monotonic() + arguments.minutes * 60
    bad, skipped, remembered = [], [], 0

    def one(name):
        mark = memory / fingerprint(Path(name), commands[name].replace(str(ROOT), "ROOT"))
        if mark.exists():
            return name, "remembered", "", 0.0
        if time.monotonic() > stop:
            return name, "skipped", "", 0.0
        clean, text, took = check(Path(name), arguments.build)
        if clean:
            mark.touch()
        return name, "clean" if clean else "bad", text, took

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, outcome, text, took in pool.map(one, wanted):
            short = os.path.relpath(name, ROOT)
            if outcome == "bad":
                bad.append(short)
                print(f"{short}:\n{text}")
            elif outcome == "skipped":
                skipped.append(short)
            elif outcome == "remembered":
                remembered += 1
            else:
                print(f"{short}: clean ({took:.0f} s)", flush=True)
    for short in skipped:
        print(f"not looked at, the time limit was over: {short}")
    print(f"clang-tidy: {len(wanted)} files, {remembered} known clean, {len(bad)} with findings, {len(skipped)} not looked at")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
