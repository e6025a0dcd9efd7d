"""No modules import each other in a cycle, neither when they run nor for annotations alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imported_modules(tree: ast.AST, modules: Iterable[str]) -> set[str]:
    """The modules of ours that a module names in imports: at its top, in functions, for types."""
    named = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            named |= {name if name in modules else node.module for name in full}
    return named & set(modules)


def with_packages(importer: str, imported: set[str]) -> set[str]:
    """With the packages whose `__init__` an import runs, except those that contain the importer."""
    found = set(imported)
    for name in imported:
        parts = name.split(".")
        packages = {".".join(parts[:length]) for length in range(1, len(parts))}
        found |= {each for each in packages if not f"{importer}.".startswith(f"{each}.")}
    return found - {importer}


def find_cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """The modules of one cycle; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    trees = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
    imports = {
        name: with_packages(name, imported_modules(tree, MODULES)) for name, tree in trees.items()
    }
    cycle = find_cycle(imports)
    assert not cycle, f"move what they share to a module that both import: {' <- '.join(cycle)}"


@pytest.mark.parametrize(
    ("sources", "cycle"),
    [
        ({"p": "", "p.a": "from p import b", "p.b": "import p.a"}, True),
        ({"p": "", "p.a": "from p.b import B", "p.b": "def f():\n from p.a import A"}, True),
        ({"p": "", "p.a": "from p.b import B", "p.b": "if TYPE_CHECKING:\n import p.a"}, True),
        ({"p": "from p.a import A", "p.a": "from p import X"}, True),
        ({"p": "import p.a", "p.a": "import q.b", "q": "", "q.b": "import p.c", "p.c": ""}, True),
        ({"p": "from p.a import A", "p.a": "from p.b import B", "p.b": "import os"}, False),
    ],
)  # fmt: skip
def test_cycles_are_found(sources: dict[str, str], cycle: bool) -> None:
    imports = {
        name: with_packages(name, imported_modules(ast.parse(text), sources))
        for name, text in sources.items()
    }
    assert bool(find_cycle(imports)) is cycle
