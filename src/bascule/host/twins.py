"""Tells which twin of each hot module is used: the compiled one or the source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def loaded_twins() -> Mapping[str, str]:
    """Hot module -> `compiled` or `interpreted`, whichever an import finds.

    `_hot.py` has the name of its package (`record`), another hot module its own
    (`record._hot_columns`). Only the files are examined, as the import system does: an extension
    for this Python comes first.
    """
    found: dict[str, str] = {}
    for source in sorted(_PACKAGE.rglob("_hot*.py")):
        if source.with_suffix(".pxd").exists():
            continue  # inline functions: compiled into the modules that call them
        compiled = any(source.with_suffix(suffix).exists() for suffix in EXTENSION_SUFFIXES)
        module = source.parent if source.stem == "_hot" else source.with_suffix("")
        name = module.relative_to(_PACKAGE).as_posix().replace("/", ".")
        found[name] = "compiled" if compiled else "interpreted"
    return found


@cache
def twin_of_all() -> str:
    """`compiled`, `interpreted`, or `mixed` if only some modules are compiled; as they were at the
    first call, since a status asks for it and the directories take milliseconds."""
    kinds = set(loaded_twins().values())
    return kinds.pop() if len(kinds) == 1 else "mixed"
