"""A lake of each format."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.lake_rows import FORMATS, Lake


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)
