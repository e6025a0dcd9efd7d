"""Finds the exception of a Python worker in the text of an error of Spark. Pure."""

from __future__ import annotations

import re
from typing import Final

_OWN: Final = re.compile(r"bascule\.errors\.(?:\w+\.)*(\w+): (.+)")
_TRACEBACK: Final = re.compile(
    r"^\s*Traceback \(most recent call last\):\n"
    r"(?:[ \t]+.*\n)*?[ \t]*([A-Za-z_][\w.]*)(?:: (.*))?$",
    re.MULTILINE,
)
"""A traceback, up to the line that names the exception."""


def own_error(text: str) -> tuple[str, str] | None:
    """The class name and the text of the last error of Bascule; None if there is none."""
    found = _OWN.findall(text)
    return (str(found[-1][0]), str(found[-1][1]).strip()) if found else None


def worker_error(text: str) -> str:
    """The exception of the last traceback: `pyarrow.lib.ArrowInvalid: ...`; empty if there is none.

    Of chained exceptions the last one left the worker.
    """
    found = _TRACEBACK.findall(text)
    if not found:
        return ""
    name, what = found[-1]
    return f"{name}: {what.strip()}" if what else str(name)
