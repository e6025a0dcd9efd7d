"""The fenced blocks of a page and the marks in its source.

Blocks of `sh`, `console` (commands after `$ `, and what they print), `python` and `pycon` run.
`json`, `toml` and `yaml` are parsed. `text` is neither: diagrams, layouts, output. A mark is an
HTML comment directly above a block:

    <!-- not run: REASON -->          the block does not run
    <!-- with Spark -->               it runs in the tests with Spark only
    <!-- file: NAME -->               it is a file, which later blocks use
    <!-- output -->                   it is what the block before printed; `...` stands for anything
    <!-- Ctrl-C after: TEXT -->       it runs in a terminal, and is interrupted once TEXT was shown

Anywhere in the page:

    <!-- run first: COMMANDS -->      commands that the page leaves out: a node, messages to read

In the page's first lines:

    <!-- page: with Spark -->         the whole page needs Spark
    <!-- page: continues PAGE -->     the page needs what PAGE left: its folder, node and names
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

RUN = frozenset({"sh", "console", "python", "pycon"})
PARSED = frozenset({"json", "toml", "yaml"})
SHOWN = frozenset({"text"})
MARKS = ("not run", "with Spark", "file", "output", "Ctrl-C after")
NEED_TEXT = frozenset({"not run", "file", "Ctrl-C after"})
FENCE = re.compile(r"^( *)```(.*)$")
COMMENT = re.compile(r"^ *<!-- (.*?)(?: -->)?$")
LOOKS_LIKE_COMMANDS = re.compile(
    r"^ *(\$ |>>> |(bascule|curl|python|make|pip|import|from) )", re.MULTILINE
)


class PageError(Exception):
    """A block or a mark that nothing runs and nothing explains."""


@dataclass(frozen=True)
class Step:
    """A block, or commands that the page leaves out (language `sh`, `hidden`)."""

    page: str
    line: int
    """Of its first line of text, from 1."""
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)
    hidden: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    name: str
    """Path below the root of the repository."""
    with_spark: bool
    continues: str
    steps: tuple[Step, ...]

    @property
    def runs(self) -> bool:
        return any(self.needs_a_run(step) for step in self.steps)

    @property
    def runs_without_spark(self) -> bool:
        return not self.with_spark and any(
            self.needs_a_run(step) for step in self.steps if "with Spark" not in step.marks
        )

    @property
    def runs_with_spark(self) -> bool:
        return self.with_spark or any("with Spark" in step.marks for step in self.steps)

    @staticmethod
    def needs_a_run(step: Step) -> bool:
        return step.language in RUN and "not run" not in step.marks and not step.hidden


def page_paths() -> list[Path]:
    """Every page for users and contributors; decisions are history."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return sorted(path for path in found if "decisions" not in path.parts)


def read_page(path: Path) -> Page:
    """Raises: PageError."""
    name = path.relative_to(ROOT).as_posix()
    with_spark, continues, steps = False, "", list[Step]()
    marks: dict[str, str] = {}
    lines = iter(enumerate(path.read_text().splitlines(), 1))
    for number, line in lines:
        where = f"{name}:{number}"
        if comment := COMMENT.match(line):
            kind, _, text = (part.strip() for part in comment[1].partition(":"))
            if kind == "run first":
                text = text if "-->" in line else "\n".join(until(lines, "-->", where))
                steps.append(Step(name, number + 1, "sh", text, hidden=True))
            elif kind == "page" and text == "with Spark":
                with_spark = True
            elif kind == "page" and text.startswith("continues "):
                continues = (path.parent / text.split()[1]).relative_to(ROOT).as_posix()
            elif kind in MARKS and bool(text) == (kind in NEED_TEXT):
                marks[kind] = text
            else:
                raise PageError(f"{where}: no such mark: {line.strip()}")
        elif fence := FENCE.match(line):
            indent = len(fence[1])
            body = [text[indent:] for text in until(lines, "```", where)]
            step = Step(name, number + 1, fence[2].strip(), "\n".join(body) + "\n", marks)
            check(step)
            steps.append(step)
            marks = {}
        elif marks:
            raise PageError(f"{where}: a mark stands directly above its block: {marks}")
    return Page(name, with_spark, continues, tuple(steps))


def until(lines: Iterator[tuple[int, str]], end: str, where: str) -> Iterator[str]:
    for _, line in lines:
        if line.strip() == end:
            return
        yield line
    raise PageError(f"{where}: no {end} ends what begins here")


def check(step: Step) -> None:
    """Every block runs, is parsed, is a picture, or says why it is not run."""
    if "not run" in step.marks:
        return
    if step.language not in RUN | PARSED | SHOWN:
        raise PageError(
            f"{step.where}: a block of {step.language or 'no language'} is neither run nor parsed: "
            "name its language (text for diagrams and output), or mark it `not run: REASON`"
        )
    if step.language not in SHOWN or "output" in step.marks or "file" in step.marks:
        return
    if found := LOOKS_LIKE_COMMANDS.search(step.text):
        raise PageError(f"{step.where}: commands in a block of text: {found[0]!r}")


def chapters(pages: list[Page]) -> dict[str, list[Page]]:
    """The pages by the first one that they continue, each after the one that it continues."""
    by_name = {page.name: page for page in pages}
    found: dict[str, list[Page]] = {}
    for page in pages:
        chain = [page]
        while before := chain[0].continues:
            if before not in by_name:
                raise PageError(f"{chain[0].name} continues {before}, which is no page")
            chain.insert(0, by_name[before])
        chapter = found.setdefault(chain[0].name, [])
        chapter += [each for each in chain if each not in chapter]
    return found
