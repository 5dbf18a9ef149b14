# SPDX-License-Identifier: Apache-2.0
"""Jobs under AddressSanitizer and UndefinedBehaviorSanitizer: `make test-sanitized` builds _core.so with them and
sets HVDATA_TEST_SANITIZED. Python, TensorFlow, Horovod and MPI are what they always are; the sanitizers' libraries are
loaded before them, and so see all memory that anybody takes or gives back.

Wrong reads and writes are looked for in the code that was compiled for it, which is ours, and in the functions of C's library
(memcpy, say) that anybody calls. Nobody else's call has been found wrong so far: tests/ranks/asan.supp would name it.

Leaks are not looked for: in ranks under MPI LeakSanitizer reported none, not even one made on purpose, and its tracer, which stops
all threads at the end of a process, has crashed there. Valgrind looks for them, in C++ tests.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

SUPPRESSIONS = Path(__file__).with_name("asan.supp")
OPTIONS = {
    "abort_on_error": "1",  # a status that the launcher sees
    "detect_leaks": "0",
    "handle_segv": "2",  # Python's faulthandler wants that signal as well, and knows less
    "handle_abort": "0",  # but ours, for the stacks of a test that hangs, is for faulthandler
    "protect_shadow_gap": "0",  # CUDA wants memory there
    "detect_stack_use_after_return": "1",
    "strict_string_checks": "1",
    "quarantine_size_mb": "16",  # memory that was given back is kept for so long; tests measure what a process keeps
    "malloc_context_size": "12",
    "print_legend": "0",
    "symbolize": "0",  # findings() finds the names of our functions
    "suppressions": str(SUPPRESSIONS),
}


def environment() -> dict[str, str]:
    """Variables for the ranks of a job. What is to be loaded reaches the ranks alone: see rank.sh."""
    return {
        "HVDATA_TEST_PRELOAD": " ".join([*_without_spreading(), "env", f"LD_PRELOAD={':'.join(libraries())}"]),
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in OPTIONS.items()),
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:abort_on_error=1",
    }


@functools.cache
def libraries() -> list[str]:
    """AddressSanitizer's, which must come first, and C++'s: it looks for that when it starts, to see exceptions pass."""
    compiler = shutil.which("g++")
    if compiler is None:
        return []
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return found if all(os.path.isabs(path) for path in found) else []  # a bare name: it has none


def findings(directory: Path) -> str:
    """What the sanitizers found in a job whose files are in `directory`; empty if nothing."""
    found = []
    for path in sorted(directory.glob("sanitizer.*.*")):
        if text := path.read_text(errors="replace").strip():
            _, rank, pid = path.name.split(".")
            found.append(f"===== sanitizers: rank {rank}, process {pid} =====\n{with_names(text)}")
    # UndefinedBehaviorSanitizer has no file of its own.
    for path in sorted(directory.glob("err.*")):
        for text in re.findall(
            r"^\S+:\d+:\d+: runtime error: .*\n(?:    #.*\n)*", path.read_text(errors="replace"), re.M
        ):
            found.append(f"===== sanitizers: rank {path.suffix[1:]} =====\n{text}")
    return "\n\n".join(found)


def with_names(report: str) -> str:
    """A report with functions and lines of our library for the addresses in it."""
    addresses: dict[str, list[str]] = {}
    for library, address in re.findall(r"\((\S+/_core\.so)\+(0x[0-9a-f]+)\)", report):
        addresses.setdefault(library, []).append(address)
    for library, some in addresses.items():
        some = list(dict.fromkeys(some))
        try:
            done = subprocess.run(["addr2line", "-Cfpse", library, *some], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            continue
        for address, name in zip(some, done.stdout.splitlines()):
            report = report.replace(f"({library}+{address})", f"in {name} ({library}+{address})")
    return report


def _without_spreading() -> list[str]:
    """Older sanitizers die where the kernel spreads mappings further than they know; see cmake/HvdataSpreading.cmake."""
    setarch = shutil.which("setarch")
    command = [setarch, platform.machine(), "-R"] if setarch else []
    return command if command and subprocess.run([*command, "true"], capture_output=True).returncode == 0 else []
