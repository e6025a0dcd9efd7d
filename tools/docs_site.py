"""Lay out the pages of the docs site in build/docs: README first, then docs/ as it is.

Documents link to each other as files of the repository. Here links are made to lead within the
site; a link to a file that is not a page becomes its text, since the site does not hold it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "docs"
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


def page_of(path: Path) -> Path | None:
    """Where a file or a folder of the repository is on the site."""
    if path.is_dir():
        path /= "README.md"
        if path.parent == ROOT / "docs" / "decisions":
            return PAGES / "decisions" / "README.md"
    if path.parent == ROOT and path.name in ROOT_PAGES:
        return PAGES / ROOT_PAGES[path.name]
    if path.is_relative_to(ROOT / "docs") and path.exists():
        return PAGES / path.relative_to(ROOT / "docs")
    return None


def lay_out(source: Path, target: Path) -> None:
    def lead(link: re.Match[str]) -> str:
        mark, text, file, anchor = link.groups()
        page = page_of((source.parent / file).resolve())
        if page is None:
            return text
        return f"{mark}[{text}]({os.path.relpath(page, target.parent)}{anchor or ''})"

    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(LINK.sub(lead, source.read_text()))


def list_decisions() -> None:
    lines = ["# Decisions", "", "Each says what was chosen and what was given up.", ""]
    for path in sorted((PAGES / "decisions").glob("0*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        lines.append(f"* [{title}]({path.name})")
    (PAGES / "decisions" / "README.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    for name, page in ROOT_PAGES.items():
        lay_out(ROOT / name, PAGES / page)
    for source in sorted((ROOT / "docs").rglob("*")):
        target = PAGES / source.relative_to(ROOT / "docs")
        if source.suffix == ".md":
            lay_out(source, target)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    list_decisions()


if __name__ == "__main__":
    main()
