# SPDX-License-Identifier: Apache-2.0
"""Brings the outputs in docs/gallery.md up to date: runs the command of each console block, and puts its output there.

    python packaging/site/gallery.py [NAME...]     NAME: these examples alone; the others keep their output

An `…` in a block stands for lines left out. The new output keeps the same numbers of lines before and after it.
Takes a few minutes. returnn_training needs `make test-integrations` before it; jax_ranks, keras_jax, keras_torch, torch_horovod,
torch_ranks and rlds_torch need `make test-frameworks`, and .venv/bin/python.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gallery.md"
BLOCK = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # command, output
AUDIT = "audit_published_bugs"


def shortened(said: str, before: str) -> str:
    """The part of an output that is shown. `before`: what the page has now."""
    lines = [line.rstrip() for line in said.splitlines()]
    if "…" in before.splitlines():
        first, last = (len(part.splitlines()) for part in before.split("…\n"))
        lines = [*lines[:first], "…", *lines[len(lines) - last :]]
    return "\n".join(lines) + "\n"


def one_bug(said: str) -> str:
    """The part about one of the audit's five bugs."""
    lines = said.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("RETURNN #1570"))
    end = next(i for i, line in enumerate(lines) if i > start and line.startswith("->"))
    return "\n".join(["…", *(line.rstrip() for line in lines[start : end + 1]), "…"]) + "\n"


def run(command: str, folder: Path) -> str:
    from ranks.launch import environment

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    more = {"HOROVOD_CYCLE_TIME": None, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": None, "PATH": path}
    env = environment(folder, 0, more)
    if "digits_keras" in command:
        data = [sys.executable, "examples/digits_data.py"]
        subprocess.run(data, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.replace(f"{folder}/", "").replace(socket.gethostname(), "node1")


def main() -> None:
    names = sys.argv[1:]
    sys.path.insert(0, str(ROOT / "tests"))  # its module starts jobs on this machine
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")

        def renewed(block: re.Match[str]) -> str:
            command, before = block.groups()
            script = re.search(r"examples/(\w+)\.py", command)[1]
            if names and script not in names:
                return block[0]
            print(f"[gallery] {command}", flush=True)
            said = run(command, folder)
            shown = one_bug(said) if script == AUDIT else shortened(said, before)
            return f"```console\n$ {command}\n{shown}```"

        PAGE.write_text(BLOCK.sub(renewed, PAGE.read_text()))


if __name__ == "__main__":
    main()
