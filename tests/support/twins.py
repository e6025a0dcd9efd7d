"""Load either twin of a hot module (`_hot*.py`): the compiled extension or the interpreted source.

A hot module is named by its path: `record` is `record/_hot.py`, `record/_hot_name` a second one.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Literal

SOURCE_ROOT = Path(__file__).resolve().parents[2] / "src" / "bascule"

Twin = Literal["compiled", "interpreted"]


class TwinMissing(Exception):
    """The compiled twin is absent or older than its source."""


def hot_modules() -> list[str]:
    """All compiled modules, by the names that `load_twin` takes. A `_hot_<noun>.py` beside a `.pxd`
    is not compiled itself: it is the interpreted twin of inline functions.
    """
    return sorted(
        source.parent.relative_to(SOURCE_ROOT).as_posix()
        if source.stem == "_hot"
        else source.relative_to(SOURCE_ROOT).with_suffix("").as_posix()
        for source in SOURCE_ROOT.rglob("_hot*.py")
        if not source.with_suffix(".pxd").exists()
    )


def source_path(module: str) -> Path:
    """The source of a hot module."""
    if not module.rpartition("/")[2].startswith("_hot"):
        module += "/_hot"
    return SOURCE_ROOT / f"{module}.py"


def extension_path(module: str) -> Path | None:
    """The extension for this Python beside the source, or None if it was not built."""
    for suffix in EXTENSION_SUFFIXES:
        path = source_path(module).with_suffix(suffix)
        if path.exists():
            return path
    return None


@cache
def load_twin(module: str, twin: Twin) -> ModuleType:
    """The hot module `module` (its path below `bascule`) as `twin`.

    The twin that the program has loaded stays loaded.

    Raises: TwinMissing if the extension was not built or is older than its source.
    """
    source = source_path(module)
    name = ".".join(("bascule", *source.relative_to(SOURCE_ROOT).with_suffix("").parts))
    if twin == "interpreted":
        # Another name, so that the twin of the program stays loaded.
        loader = SourceFileLoader(f"{name}_interpreted", str(source))
        spec = importlib.util.spec_from_loader(loader.name, loader)
        assert spec is not None
        loaded = importlib.util.module_from_spec(spec)
        loader.exec_module(loaded)
    else:
        extension = extension_path(module)
        if extension is None:
            raise TwinMissing(f"{name} is not compiled for this Python: run `make build`")
        if extension.stat().st_mtime < source.stat().st_mtime:
            raise TwinMissing(f"{extension.name} is older than {source}: run `make build`")
        loaded = importlib.import_module(name)
    assert loaded.IS_COMPILED is (twin == "compiled"), f"{name} loaded as the wrong twin"
    return loaded
