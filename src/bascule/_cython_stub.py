"""No-op stand-ins for the Cython names that `_hot*.py` files use, for machines without Cython.

Only annotations and directives are needed: an interpreted twin never runs C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

compiled = False


class _CType:
    """Stands for a C type in an annotation; `int[::1]` and friends are themselves."""

    def __getitem__(self, _: object) -> _CType:
        return self


bint = char = const = void = uchar = int = uint = short = ushort = longlong = ulonglong = _CType()
Py_ssize_t = size_t = double = float = _CType()


def _directive(*_: object, **__: object) -> Callable[[_F], _F]:
    def keep(function: _F) -> _F:
        return function

    return keep


boundscheck = wraparound = cdivision = returns = exceptval = _directive


def cfunc(function: _F) -> _F:
    return function


inline = cfunc


class _NoGil:
    """`cython.nogil` is both a decorator and a context manager."""

    def __call__(self, function: _F) -> _F:
        return function

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


nogil = _NoGil()
