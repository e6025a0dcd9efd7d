"""What tests of the Kafka listener share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.handlers import House, open_house


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """Handlers over three streams; see `support.handlers`."""
    yield from open_house(tmp_path)
