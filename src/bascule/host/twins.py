"""Which twin of each hot module this installation runs: the compiled one or the source."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def loaded_twins() -> Mapping[str, str]:
    """Package -> `compiled` or `interpreted`, as an import of its `_hot` finds it.

    Decided by the files alone, as the import system does: an extension of this Python wins.
    """
    found: dict[str, str] = {}
    for source in sorted(_PACKAGE.rglob("_hot.py")):
        folder = source.parent
        compiled = any((folder / f"_hot{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
        name = folder.relative_to(_PACKAGE).as_posix().replace("/", ".")
        found[name] = "compiled" if compiled else "interpreted"
    return found


def twin_of_all() -> str:
    """`compiled`, `interpreted`, or `mixed` where an installation is half built."""
    kinds = set(loaded_twins().values())
    return kinds.pop() if len(kinds) == 1 else "mixed"
