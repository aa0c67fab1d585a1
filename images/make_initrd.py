#!/usr/bin/env python3
"""Packs the guest's first file system: the agent as /init and the kernel modules it inserts, nothing else.

usage: make_initrd.py OUT.gz AGENT MODULES_DIR

MODULES_DIR holds the .ko files and `order`, one name per line in the order of insertion. The same input gives
the same bytes: owner 0, time 0, sorted names.
"""
import gzip
import os
import stat
import struct
import sys

PT_INTERP = 3


def check_static(elf: bytes) -> None:
    """The initramfs holds no loader, so an agent that wants one would panic the guest at boot."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("the agent is no 64-bit ELF program")
    offset = struct.unpack_from("<Q", elf, 0x20)[0]
    size, count = struct.unpack_from("<HH", elf, 0x36)
    for index in range(count):
        if struct.unpack_from("<I", elf, offset + index * size)[0] == PT_INTERP:
            raise ValueError("the agent is linked dynamically; it has to be static")


class Newc:
    """The cpio flavour the kernel unpacks (Documentation/driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.inode = 0

    def add(self, name: str, mode: int, content: bytes = b"") -> None:
        self.inode += 1
        path = name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = (self.inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(path), 0)
        self.out += b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self._pad()
        self.out += content
        self._pad()

    def _pad(self) -> None:
        self.out += bytes(-len(self.out) % 4)

    def finish(self) -> bytes:
        self.inode = -1
        self.add("TRAILER!!!", 0)
        return bytes(self.out)


def read(path: str) -> bytes:
    with open(path, "rb") as source:
        return source.read()


def pack(agent: str, modules: str) -> bytes:
    program = read(agent)
    check_static(program)
    archive = Newc()
    archive.add("init", stat.S_IFREG | 0o755, program)
    archive.add("modules", stat.S_IFDIR | 0o755)
    order = read(os.path.join(modules, "order"))
    archive.add("modules/order", stat.S_IFREG | 0o644, order)
    for name in sorted(order.decode().split()):
        archive.add(f"modules/{name}", stat.S_IFREG | 0o644, read(os.path.join(modules, name)))
    return archive.finish()


def main() -> int:
    if len(sys.argv) != 4:
        print(__doc__.splitlines()[2], file=sys.stderr)
        return 2
    try:
        packed = gzip.compress(pack(sys.argv[2], sys.argv[3]), compresslevel=6, mtime=0)
        with open(sys.argv[1], "wb") as target:
            target.write(packed)
    except (OSError, ValueError) as problem:
        print(f"make_initrd: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
