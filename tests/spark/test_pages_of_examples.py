"""The pages of the examples do what they say on Spark."""

from __future__ import annotations

import pytest

from support.documents.pages import Page
from support.documents.runs import chapters_to_run, run_chapter


@pytest.mark.long  # `test_examples.py` runs the examples
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pages", chapters_to_run(with_spark=True, of="examples/"))
def test_a_page_runs_as_it_is_printed(pages: list[Page]) -> None:
    run_chapter(pages, with_spark=True)
