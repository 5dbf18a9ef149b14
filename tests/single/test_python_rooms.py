# SPDX-License-Identifier: Apache-2.0
"""The folders of horovod_data/. A module imports only its own folder and those before it in ORDER."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "horovod_data"
# Top modules and folders, from the lowest up. Those in one tuple do not import each other.
ORDER = (
    ("_version", "errors"),
    ("native", "timeline"),
    ("certificate", "elements", "job"),
    ("plan",),
    ("observe",),
    ("ending",),
    ("channel",),
    ("auditing", "collectives", "loading", "pipeline"),
    ("backup",),
    ("callbacks", "start"),
    ("doctor", "integrations", "launcher"),
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
MODULES = {
    path: list(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"  # imports all, when they are used
}


def imported(path: Path) -> set[tuple[str, ...]]:
    """Our modules that a file imports anywhere, as paths in the package. A name of the module may follow."""
    found = set()
    here = MODULES[path][:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            if node.level:
                module = here[: len(here) + 1 - node.level] + module
            elif module[:1] == ["horovod_data"]:
                module = module[1:]
            else:
                continue
            found |= {(*module, name.name) for name in node.names}
        elif isinstance(node, ast.Import):
            words = [name.name.split(".") for name in node.names]
            found |= {tuple(word[1:]) for word in words if word[0] == "horovod_data" and len(word) > 1}
    return found


def test_every_folder_has_its_place():
    tops = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert tops - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_down(path):
    top = MODULES[path][0]
    for module in imported(path):
        assert module[0] == top or LEVEL[module[0]] < LEVEL[top], f"{path} imports {'.'.join(module)}"


def test_no_circle():
    """Modules of one folder import each other in no circle, either."""
    names = {tuple(name if name[-1] != "__init__" else name[:-1]): path for path, name in MODULES.items()}
    below = {}
    for path in MODULES:
        found = {names.get(module, names.get(module[:-1])) for module in imported(path)}
        below[path] = {one for one in found if one is not None and one.name != "__init__.py"} - {path}
    done: set[Path] = set()
    while ready := {path for path, needs in below.items() if path not in done and needs <= done}:
        done |= ready
    assert done == set(MODULES), sorted(str(path.relative_to(PACKAGE)) for path in set(MODULES) - done)
