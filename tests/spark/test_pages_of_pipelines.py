"""The pages of the pipelines do what they say on Spark."""

from __future__ import annotations

import pytest

from support.documents.pages import Page
from support.documents.runs import chapters_to_run, run_chapter


@pytest.mark.long  # `test_pipeline_cli.py` runs what the page shows
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pages", chapters_to_run(with_spark=True, of="docs/pipelines/"))
def test_a_page_runs_as_it_is_printed(pages: list[Page]) -> None:
    run_chapter(pages, with_spark=True)
