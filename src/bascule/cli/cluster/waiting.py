"""Waiting for something that a node does by and by."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WAIT_SECONDS: Final = 0.2
"""Between two looks."""


def wait_while(is_under_way: Callable[[], bool]) -> None:
    """Return once it is not under way any more, or raise what the look raises."""
    while is_under_way():
        time.sleep(WAIT_SECONDS)
