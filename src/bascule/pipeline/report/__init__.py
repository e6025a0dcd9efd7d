"""The report of a run: one HTML file with its figures, plots and tables, and nothing to fetch.

    figures   numbers as people read them                  pure
    chart     a line over time as inline SVG               pure
    page      a `JobResult` as a page, light and dark      pure

No script, no font, no picture from elsewhere: the file opens from a mail, an artefact store or a
disk without a network, and says the same in ten years.
"""

from __future__ import annotations

from pathlib import Path

from bascule.pipeline.jobs.model import JobResult
from bascule.pipeline.report.page import page

__all__ = ["page", "write_report"]


def write_report(result: JobResult, path: Path) -> None:
    """Write the page of `result`; folders are made. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(result), encoding="utf-8")
