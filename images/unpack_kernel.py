#!/usr/bin/env python3
"""Turns a distribution's bzImage into the ELF image inside it, which every microVM monitor boots directly.

usage: unpack_kernel.py VMLINUZ VMLINUX

The boot header says where the compressed payload lies (Documentation/arch/x86/boot.rst): payload_offset and
payload_length, counted from the end of the real-mode setup sectors. Debian's kernels carry LZ4 or XZ there; the last four
bytes are the uncompressed size.
"""
import lzma
import struct
import subprocess
import sys

MAGIC_LZ4 = b"\x02\x21\x4c\x18"
MAGIC_XZ = b"\xfd7zXZ\x00"


def payload_of(image: bytes) -> bytes:
    if len(image) < 0x260 or image[0x202:0x206] != b"HdrS":
        # The signature stands at 0x202 in every image with boot protocol >= 2.00.
        raise ValueError("no Linux boot header: not a bzImage")
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    if length < 8 or start + length > len(image):
        raise ValueError("the boot header points outside the image")
    return image[start : start + length]


def decompress(payload: bytes) -> bytes:
    size = struct.unpack_from("<I", payload, len(payload) - 4)[0]
    body = payload[:-4]
    if body.startswith(MAGIC_LZ4):
        done = subprocess.run(["lz4", "-dc"], input=body, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        image = done.stdout
    elif body.startswith(MAGIC_XZ):
        image = lzma.LZMADecompressor().decompress(body)
    else:
        raise ValueError(f"unknown compression of the kernel payload: {body[:6].hex()}")
    if len(image) != size:
        raise ValueError(f"the kernel payload unpacked to {len(image)} bytes, its trailer says {size}")
    if image[:4] != b"\x7fELF":
        raise ValueError("the kernel payload holds no ELF image")
    return image


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__.splitlines()[2], file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], "rb") as source:
            image = decompress(payload_of(source.read()))
        with open(sys.argv[2], "wb") as target:
            target.write(image)
    except (OSError, ValueError) as problem:
        print(f"unpack_kernel: {sys.argv[1]}: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
