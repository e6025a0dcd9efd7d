"""Load either twin of a package's `_hot.py`: the compiled extension or the interpreted source."""

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


def extension_path(package: str) -> Path | None:
    """The extension of this Python beside `_hot.py`, or None if it was not built."""
    for suffix in EXTENSION_SUFFIXES:
        path = SOURCE_ROOT / package / f"_hot{suffix}"
        if path.exists():
            return path
    return None


@cache
def load_twin(package: str, twin: Twin) -> ModuleType:
    """`_hot` of `bascule.<package>` (slashes for nested ones) as `twin`.

    The twin the program itself has loaded is left as it is.

    Raises: TwinMissing when the extension was not built, or its source changed since.
    """
    source = SOURCE_ROOT / package / "_hot.py"
    name = f"bascule.{package.replace('/', '.')}._hot"
    if twin == "interpreted":
        # Another name, so that the twin the program uses stays what it is.
        loader = SourceFileLoader(f"{name}_interpreted", str(source))
        spec = importlib.util.spec_from_loader(loader.name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    else:
        extension = extension_path(package)
        if extension is None:
            raise TwinMissing(f"{name} is not compiled for this Python: run `make build`")
        if extension.stat().st_mtime < source.stat().st_mtime:
            raise TwinMissing(f"{extension.name} is older than {source}: run `make build`")
        module = importlib.import_module(name)
    assert module.IS_COMPILED is (twin == "compiled"), f"{name} loaded as the wrong twin"
    return module
