# SPDX-License-Identifier: Apache-2.0
"""Jobs under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer: `make test-sanitized` builds _core.so with them and
sets HVDATA_TEST_SANITIZED. Python, TensorFlow, Horovod and MPI are what they always are; the sanitizers' libraries are
loaded before them, and so see all memory that anybody takes or gives back.

What others do is none of our business, and is left out by these rules, not by lists of names:
- Leaks count if memory was taken by a function of _core.so, as far up the stack as the sanitizer follows it. Python and
  TensorFlow leave some 10,000 objects to the end of the process, on purpose.
- Wrong reads and writes are looked for in the code that was compiled for it, which is ours, and in the functions of C's
  library (memcpy, say) that anybody calls. Nobody else's call has been found wrong so far: tests/ranks/asan.supp would name it.
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
    "exitcode": "0",  # of a process that leaked, as Python does; findings() tells whose the leaks are
    "handle_segv": "2",  # Python's faulthandler wants that signal as well, and knows less
    "handle_abort": "0",  # but ours, for the stacks of a test that hangs, is for faulthandler
    "protect_shadow_gap": "0",  # CUDA wants memory there
    "detect_stack_use_after_return": "1",
    "strict_string_checks": "1",
    "quarantine_size_mb": "16",  # memory that was given back is kept for so long; tests measure what a process keeps
    "malloc_context_size": "12",
    "print_legend": "0",
    "symbolize": "0",  # names for the stacks of 10,000 leaks would take a minute; findings() finds those of our functions
    "suppressions": str(SUPPRESSIONS),
}


def environment() -> dict[str, str]:
    """Variables for the ranks of a job. What is to be loaded reaches the ranks alone: see rank.sh."""
    options = {**OPTIONS, "detect_leaks": str(int(can_look_for_leaks()))}
    return {
        "HVDATA_TEST_PRELOAD": " ".join([*_without_spreading(), "env", f"LD_PRELOAD={':'.join(libraries())}"]),
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in options.items()),
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:abort_on_error=1",
        "LSAN_OPTIONS": "print_suppressions=0",
    }


@functools.cache
def libraries() -> list[str]:
    """AddressSanitizer's, which must come first, and C++'s: it looks for that when it starts, to see exceptions pass."""
    compiler = shutil.which("g++")
    if compiler is None:
        return []
    found = [subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
             for name in ("libasan.so", "libstdc++.so")]
    return found if all(os.path.isabs(path) for path in found) else []  # a bare name: it has none


@functools.cache
def can_look_for_leaks() -> bool:
    """LeakSanitizer stops its process as a debugger does, which some containers forbid."""
    env = {**os.environ, "LD_PRELOAD": ":".join(libraries()), "ASAN_OPTIONS": "detect_leaks=1:exitcode=0"}
    done = subprocess.run(["true"], env=env, capture_output=True, text=True)
    return done.returncode == 0 and "fatal error" not in done.stderr


def findings(directory: Path) -> str:
    """What the sanitizers found in a job whose files are in `directory`; empty if nothing."""
    found = []
    for path in sorted(directory.glob("sanitizer.*.*")):
        if text := ours(path.read_text(errors="replace")):
            _, rank, pid = path.name.split(".")
            found.append(f"===== sanitizers: rank {rank}, process {pid} =====\n{with_names(text)}")
    # UndefinedBehaviorSanitizer has no file of its own.
    for path in sorted(directory.glob("err.*")):
        for text in re.findall(r"^\S+:\d+:\d+: runtime error: .*\n(?:    #.*\n)*", path.read_text(errors="replace"), re.M):
            found.append(f"===== sanitizers: rank {path.suffix[1:]} =====\n{text}")
    return "\n\n".join(found)


def ours(report: str) -> str:
    """A report without the leaks of others."""
    head, *leaks = re.split(r"^(?=(?:Direct|Indirect) leak of )", report, flags=re.M)
    if "detected memory leaks" not in head:
        return report.strip()
    # What is leaked indirectly hangs on something that is leaked, by us or by others.
    kept = [leak.partition("\n\n")[0] for leak in leaks if leak.startswith("Direct") and "/_core.so" in leak.partition("\n\n")[0]]
    return "\n\n".join(kept)


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
    """Older sanitizers die where the kernel spreads mappings further than they know; see csrc/tests/CMakeLists.txt."""
    setarch = shutil.which("setarch")
    command = [setarch, platform.machine(), "-R"] if setarch else []
    return command if command and subprocess.run([*command, "true"], capture_output=True).returncode == 0 else []
