"""The pages with blocks that need Spark do what they say, from the first block to the last."""

from __future__ import annotations

import pytest

from support.documents.pages import Page
from support.documents.runs import chapters_to_run, run_chapter

# Each of these has a file of its own, and so a process: they take minutes.
ELSEWHERE = ("docs/pipelines/", "examples/")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pages", chapters_to_run(with_spark=True, but=ELSEWHERE))
def test_a_page_runs_as_it_is_printed(pages: list[Page]) -> None:
    run_chapter(pages, with_spark=True)
