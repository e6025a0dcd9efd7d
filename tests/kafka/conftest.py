"""Fixtures of the tests of the Kafka request handlers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.handlers import HandlerHarness, open_harness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[HandlerHarness]:
    """Handlers over three streams; see `support.handlers`."""
    yield from open_harness(tmp_path)
