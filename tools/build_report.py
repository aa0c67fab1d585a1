#!/usr/bin/env python3
"""The ten steps of the last build that took longest, from ninja's log (wall time, so build alone to compare)."""
import sys


def main(path):
    newest = {}
    try:
        lines = open(path, encoding="utf-8").read().splitlines()
    except OSError:
        print(f"{path}: nothing was built there yet; run ./dev build first", file=sys.stderr)
        return 1
    for line in lines:
        fields = line.split("\t")
        if len(fields) >= 4 and not line.startswith("#"):
            newest[fields[3]] = int(fields[1]) - int(fields[0])
    for output, took in sorted(newest.items(), key=lambda one: -one[1])[:10]:
        print(f"{took / 1000:7.1f} s  {output}")
    print(f"{sum(newest.values()) / 1000:7.1f} s  in {len(newest)} steps together")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "build/dev/.ninja_log"))
