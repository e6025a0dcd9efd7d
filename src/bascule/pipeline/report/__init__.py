"""The report of a run: one self-contained HTML file with figures, plots and tables, and with when,
where and by what the job ran.

    formatting  numbers as text                            pure
    chart       a line over time as inline SVG             pure
    page        a `JobResult` as a page, light and dark    pure

The page has no scripts, fonts or external images, so it works without a network.
"""

from __future__ import annotations

from pathlib import Path

from bascule.pipeline.jobs.model import JobResult
from bascule.pipeline.report.page import page

__all__ = ["page", "write_report"]


def write_report(result: JobResult, path: Path) -> None:
    """Write the page of `result` and create its folders. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(result), encoding="utf-8")
