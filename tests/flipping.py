# SPDX-License-Identifier: Apache-2.0
"""Plays bad memory: changes bytes of batches wherever they lie.

Each batch begins with a mark such as `<3-17-marked->`, whose two numbers name the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MARK = re.compile(rb"<(\d+)-(\d+)-marked->")
_CHUNK = 16 << 20
_LONGEST = 64  # a mark


def mark(first: int, second: int) -> bytes:
    return f"<{first}-{second}-marked->".encode()


def flip(targets: Mapping[tuple[int, int], int]) -> int:
    """Changes a byte of every copy of these marks in writable memory of this process. Returns the number of copies.

    Every rank has to call this, because other ranks may only read a small share in the reader's memory. Two processes
    may change the same byte, to the same value.

    Args:
      targets: the byte to change, by the two numbers of a mark.
    """
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "r+b", buffering=0) as memory:
        for line in maps.read().splitlines():
            span, rights, _, _, _, *name = line.split()
            if not rights.startswith("rw") or any(part.startswith(("[v", "/dev/", "/usr", "/lib")) for part in name):
                continue
            begin, end = (int(part, 16) for part in span.split("-"))
            for at in range(begin, end, _CHUNK):
                try:
                    memory.seek(at)
                    data = memory.read(min(_CHUNK + _LONGEST, end - at))
                except (OSError, ValueError, OverflowError):
                    break
                for place in MARK.finditer(data):
                    byte = targets.get((int(place[1]), int(place[2])))
                    if byte is None or place.start() >= _CHUNK:
                        continue
                    try:
                        memory.seek(at + place.start() + byte)
                        memory.write(b"#")
                        found += 1
                    except OSError:  # this process may only read it
                        pass
    return found
