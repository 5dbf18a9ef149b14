# SPDX-License-Identifier: Apache-2.0
"""Jobs under AddressSanitizer and UndefinedBehaviorSanitizer.

`make test-sanitized` builds both libraries with them and sets HVDATA_TEST_SANITIZED. Python, TensorFlow, Horovod and
MPI are the usual ones. The sanitizers' libraries are loaded before them and see all allocations.

The sanitizers find wrong reads and writes in our code, and in calls of the C library (for example memcpy) by any code.
A wrong call by other code would be named in tests/ranks/asan.supp.

They don't look for leaks, because in ranks under MPI LeakSanitizer finds none and its tracer crashes. Valgrind finds
leaks in C++ tests.
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
    "abort_on_error": "1",  # so that the launcher sees a status
    "detect_leaks": "0",
    "handle_segv": "2",  # instead of Python's faulthandler, which knows less
    "handle_abort": "0",  # faulthandler takes it, for the stacks of a test that hangs
    "protect_shadow_gap": "0",  # CUDA allocates memory there
    "detect_stack_use_after_return": "1",
    "strict_string_checks": "1",
    "quarantine_size_mb": "16",  # freed memory that it keeps; tests measure the memory of a process
    "malloc_context_size": "12",
    "print_legend": "0",
    "symbolize": "0",  # findings() finds the names of our functions
    "suppressions": str(SUPPRESSIONS),
}


def environment() -> dict[str, str]:
    """Variables for the ranks of a job. Only the ranks load the libraries: see rank.sh."""
    return {
        "HVDATA_TEST_PRELOAD": " ".join([*_without_spreading(), "env", f"LD_PRELOAD={':'.join(libraries())}"]),
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in OPTIONS.items()),
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:abort_on_error=1",
    }


@functools.cache
def libraries() -> list[str]:
    """AddressSanitizer's library, which must come first, and the C++ library, which it needs at its start to intercept
    exceptions."""
    compiler = shutil.which("g++")
    if compiler is None:
        return []
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return found if all(os.path.isabs(path) for path in found) else []  # a bare name: the compiler has no such library


def findings(directory: Path) -> str:
    """The findings in a job whose files are in `directory`. Empty if there are none."""
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
    """A report in which functions and lines replace the addresses of our library."""
    addresses: dict[str, list[str]] = {}
    for library, address in re.findall(r"\((\S+/_(?:core|tf)\.so)\+(0x[0-9a-f]+)\)", report):
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
    """Older sanitizers fail if the kernel spreads mappings too far: see cmake/HvdataSpreading.cmake."""
    setarch = shutil.which("setarch")
    command = [setarch, platform.machine(), "-R"] if setarch else []
    return command if command and subprocess.run([*command, "true"], capture_output=True).returncode == 0 else []
