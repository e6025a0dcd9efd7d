"""What tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes import end_leftovers


@pytest.fixture(scope="session", autouse=True)
def no_process_stays() -> Iterator[None]:
    yield
    end_leftovers()
