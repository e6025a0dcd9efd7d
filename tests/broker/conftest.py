"""What tests of the broker share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from handler_house import House, open_house


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """Handlers over three streams; see `handler_house`."""
    yield from open_house(tmp_path)
