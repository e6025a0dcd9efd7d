"""No two public classes of the source have one name: a name in a log, a traceback or a review must
identify one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "bascule"

CLASHES: dict[str, int] = {
    "Message": 2,
}
"""Name -> classes that still share it. Entries may only shrink and disappear."""


def test_public_classes_have_different_names() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT).as_posix()}:{node.lineno}")
    clashes = {name: found for name, found in places.items() if len(found) > 1}
    new = {name: found for name, found in clashes.items() if len(found) > CLASHES.get(name, 1)}
    assert not new, f"rename all but one of these classes: {new}"
    stale = {name for name, count in CLASHES.items() if len(clashes.get(name, ())) < count}
    assert not stale, f"lower or remove the entries of {sorted(stale)}"
