#!/usr/bin/env python3
"""The parts of build_base.sh that a shell is bad at.

  template_image.py sources SUITE OUT PLACE...     the stanzas for SUITE out of apt's source files, as deb822
  template_image.py newer LOCK                     names of packages for which `apt-cache policy` (stdin) knows a newer version
  template_image.py image TREE IMAGE MIB           TREE as an ext4 image in a sparse file
  template_image.py manifest IMAGE LOCK RECIPE     the manifest of a finished image, as JSON
"""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid

# Any fixed name space will do: it only has to be the same on every host.
NAMESPACE = uuid.UUID("6f1f5c0e-2f0c-5d5b-9b57-6a2f0f5a7c11")


def deb822_stanzas(text):
    for block in re.split(r"\n\s*\n", text):
        fields, last = {}, None
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and last:
                fields[last] += "\n" + line
            elif ":" in line:
                last, value = line.split(":", 1)
                last = last.strip().lower()
                fields[last] = value.strip()
        if fields:
            yield fields


def one_line_stanzas(text):
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.+?)\s*(#.*)?$", line)
        if not match:
            continue
        options = dict(part.split("=", 1) for part in (match[1] or "").strip("[] \t").split() if "=" in part)
        fields = {"types": "deb", "uris": match[2], "suites": match[3], "components": match[4]}
        if "signed-by" in options:
            fields["signed-by"] = options["signed-by"]
        yield fields


def source_files(places):
    for place in places:
        if os.path.isdir(place):
            yield from (os.path.join(place, name) for name in sorted(os.listdir(place)) if name.endswith((".list", ".sources")))
        elif os.path.exists(place):
            yield place


def sources(suite, out, *places):
    wanted = {suite, f"{suite}-updates", f"{suite}-security", f"{suite}/updates"}
    stanzas = []
    for path in source_files(places):
        with open(path, encoding="utf-8", errors="replace") as source:
            text = source.read()
        found = deb822_stanzas(text) if path.endswith(".sources") else one_line_stanzas(text)
        for fields in found:
            suites = [name for name in fields.get("suites", "").split() if name in wanted]
            if suites and "main" in fields.get("components", "").split() and "deb" in fields.get("types", "").split() \
                    and fields.get("enabled", "yes") != "no":
                stanzas.append({"types": "deb", "uris": fields["uris"], "suites": " ".join(suites), "components": "main",
                                **({"signed-by": fields["signed-by"]} if "signed-by" in fields else {})})
    if not any(suite in stanza["suites"].split() for stanza in stanzas):
        return f"no source for {suite} in {' '.join(places)}"
    names = {"types": "Types", "uris": "URIs", "suites": "Suites", "components": "Components", "signed-by": "Signed-By"}
    with open(out, "w", encoding="utf-8") as target:
        for stanza in stanzas:
            target.write("".join(f"{names[key]}: {value}\n" for key, value in stanza.items()) + "\n")
    return None


def newer(lock):
    built = dict(line.split()[:2] for line in open(lock, encoding="utf-8"))
    found, name = [], None
    for line in sys.stdin:
        if not line[:1].isspace():
            name = line.strip().rstrip(":")
        elif line.strip().startswith("Candidate:") and name in built:
            candidate = line.split(":", 1)[1].strip()
            if candidate not in ("(none)", built[name]) and subprocess.run(
                    ["dpkg", "--compare-versions", candidate, "gt", built[name]], check=False).returncode == 0:
                found.append(name)
    print(" ".join(found), end="")


def image(tree, path, mib):
    # Reserved blocks are for a root that must go on when users filled the disk; here they are the same person. Inode tables
    # count as initialised (the file is all zeros), so no kernel thread of the guest writes them out later. Identity comes from
    # fixed values: two sandboxes with the same file system id never meet on one kernel.
    with open(path, "wb") as target:
        target.truncate(int(mib) << 20)
    options = "lazy_itable_init=0,lazy_journal_init=1,root_owner=0:0,hash_seed=" + str(NAMESPACE)
    environment = dict(os.environ, E2FSPROGS_FAKE_TIME="1700000000")
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-L", "root", "-U", str(NAMESPACE), "-J", "size=32",
                    "-E", options, "-d", tree, path], env=environment, check=True, stdin=subprocess.DEVNULL)


def digest_of_data(path):
    """SHA-256 over the written parts of a sparse file and their places; reading the holes would take ten times as long."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as source:
        end, at = os.fstat(source.fileno()).st_size, 0
        while at < end:
            try:
                at = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            hole = os.lseek(source.fileno(), at, os.SEEK_HOLE)
            os.lseek(source.fileno(), at, os.SEEK_SET)
            while at < hole:
                chunk = source.read(min(1 << 20, hole - at))
                # A zero block may or may not be a hole, depending on the host's file system; the digest must not tell.
                for start in range(0, len(chunk), 4096):
                    block = chunk[start:start + 4096]
                    if block.count(0) != len(block):
                        digest.update(b"%d:" % (at + start))
                        digest.update(block)
                at += len(chunk)
    digest.update(b"end:%d" % end)
    return digest.hexdigest()


def manifest(path, lock, recipe):
    content = digest_of_data(path)
    with open(lock, "rb") as source:
        packages = hashlib.sha256(source.read()).hexdigest()
    status = os.stat(path)
    print(json.dumps({
        "name": "base",
        "build": str(uuid.uuid5(NAMESPACE, content)),
        "content_sha256": content,
        "recipe_sha256": recipe,
        "packages_sha256": packages,
        "size_bytes": status.st_size,
        "used_bytes": status.st_blocks * 512,
        "created_at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "vcpus": 1,
        "memory_mib": 512,
        "disk_mib": status.st_size >> 20,
        "default_user": "user",
        "default_workdir": "/home/user",
    }, indent=2))


def main():
    commands = {"sources": sources, "newer": newer, "image": image, "manifest": manifest}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    problem = commands[sys.argv[1]](*sys.argv[2:])
    if problem:
        print(f"template_image: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
