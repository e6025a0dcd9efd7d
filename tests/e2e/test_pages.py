"""Every block of the pages that runs without Spark does what its page says."""

from __future__ import annotations

import pytest

from support.documents.pages import Page
from support.documents.runs import chapters_to_run, run_chapter

LONG = ("README.md", "docs/offsets.md", "docs/payloads.md", "docs/raft.md", "docs/streams.md")
"""`make test-spark` runs all of the README. Other tests run nearly the commands of the others."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pages", chapters_to_run(with_spark=False, long=LONG))
def test_a_page_runs_as_it_is_printed(pages: list[Page]) -> None:
    run_chapter(pages, with_spark=False)
