"""Which twin of each hot module this installation runs: the compiled one or the source."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def loaded_twins() -> Mapping[str, str]:
    """Hot module -> `compiled` or `interpreted`, as an import of it finds it.

    `_hot.py` of a package is named by the package alone: `record`, but `record._hot_columns`.

    Decided by the files alone, as the import system does: an extension of this Python wins.
    """
    found: dict[str, str] = {}
    for source in sorted(_PACKAGE.rglob("_hot*.py")):
        if source.with_suffix(".pxd").exists():
            continue  # inline functions, compiled into the modules that call them
        compiled = any(source.with_suffix(suffix).exists() for suffix in EXTENSION_SUFFIXES)
        module = source.parent if source.stem == "_hot" else source.with_suffix("")
        name = module.relative_to(_PACKAGE).as_posix().replace("/", ".")
        found[name] = "compiled" if compiled else "interpreted"
    return found


def twin_of_all() -> str:
    """`compiled`, `interpreted`, or `mixed` where an installation is half built."""
    kinds = set(loaded_twins().values())
    return kinds.pop() if len(kinds) == 1 else "mixed"
