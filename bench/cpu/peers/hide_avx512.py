"""Makes a twin of a peer's environment whose libraries believe in AVX2 and no more.

    hide_avx512.py ENVIRONMENT TWIN LIBRARY...

Files are shared with the environment, save the libraries named (relative to site-packages): in
those every `cpuid` instruction is replaced by a mark, which hide_avx512.so answers. It is laid
beside them, and must be preloaded. Standard library, objdump and a C compiler; x86-64.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CPUID = b"\x0f\xa2"
MARK = b"\x06\xa2"
"""See hide_avx512.c."""


def cpuid_offsets(library: Path) -> list[int]:
    """Return where in the file cpuid instructions begin."""
    headers = _run("objdump", "--section-headers", "--section=.text", library)
    numbers = re.findall(r"\b[0-9a-f]{8,16}\b", headers.split(" .text ", 1)[1])
    _, address, _, offset = numbers[:4]  # size, VMA, LMA, file offset
    listing = _run("objdump", "--disassemble", "--no-show-raw-insn", "--section=.text", library)
    found = re.findall(r"^\s*([0-9a-f]+):\s+cpuid\s*$", listing, re.MULTILINE)
    return [int(at, 16) - int(address, 16) + int(offset, 16) for at in found]


def mark(library: Path, to: Path) -> int:
    """Write a copy whose cpuid instructions are marked; return how many there were."""
    content = bytearray(library.read_bytes())
    offsets = cpuid_offsets(library)
    for offset in offsets:
        if content[offset : offset + 2] != CPUID:
            raise ValueError(f"{library}: no cpuid at {offset:#x}, where objdump sees one")
        content[offset : offset + 2] = MARK
    to.unlink()  # shared with the environment until now
    to.write_bytes(content)
    return len(offsets)


def main() -> None:
    """Make the twin."""
    environment, twin, *libraries = sys.argv[1:]
    shutil.rmtree(twin, ignore_errors=True)
    shutil.copytree(
        environment,
        twin,
        symlinks=True,
        ignore=shutil.ignore_patterns("ready"),
        copy_function=os.link,
    )
    (packages,) = Path(twin).glob("lib/python*/site-packages")
    for name in libraries:
        library = Path(environment) / packages.relative_to(twin) / name
        print(f"{name}: {mark(library, packages / name)} cpuid instructions marked")
    source = Path(__file__).with_suffix(".c")
    _run("cc", "-O2", "-shared", "-fPIC", "-o", Path(twin) / "hide_avx512.so", source)
    (Path(twin) / "ready").touch()


def _run(*command: str | Path) -> str:
    return subprocess.run(  # noqa: S603
        list(map(str, command)), check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    main()
