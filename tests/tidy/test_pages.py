"""Every block of the pages is run, parsed, a diagram, or says why it is not run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from bascule.config.layers import layer_from_toml, merge
from bascule.pipeline.declare import load
from support.documents.pages import (
    PARSED,
    ROOT,
    PageError,
    Step,
    chapters,
    page_paths,
    read_page,
)

OF_A_NODE = ("docs/configuration.md", "docs/nats.md", "docs/operations.md")
PARSERS = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


def parsed_steps() -> list[Step]:
    return [
        step
        for path in page_paths()
        for step in read_page(path).steps
        if step.language in PARSED and "not run" not in step.marks
    ]


@pytest.mark.parametrize("path", page_paths(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_block_is_accounted_for(path: Path) -> None:
    read_page(path)


def test_every_page_with_something_to_run_is_in_one_chapter() -> None:
    pages = [read_page(path) for path in page_paths()]
    told = [page.name for chapter in chapters(pages).values() for page in chapter]
    assert sorted(told) == sorted(page.name for page in pages)


@pytest.mark.parametrize("step", parsed_steps(), ids=lambda step: step.where)
def test_data_is_what_its_page_says(step: Step, tmp_path: Path) -> None:
    PARSERS[step.language](step.text)
    if step.language == "toml" and step.page in OF_A_NODE:
        merge(layer_from_toml(step.text, step.where))
    elif step.language == "toml":
        (tmp_path / "pipeline.toml").write_text(step.text)
        load(tmp_path / "pipeline.toml", environment={"CATALOG_CREDENTIAL": "secret"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```\nbascule top\n```\n", "no language"),
        ("```sql\nSELECT 1\n```\n", "a block of sql"),
        ("```text\n$ bascule top\n```\n", "commands in a block of text"),
        ("<!-- not run: -->\n```sh\nbascule top\n```\n", "no such mark"),
        ("<!-- notrun: slow -->\n```sh\nbascule top\n```\n", "no such mark"),
        ("<!-- not run: slow -->\n\n```sh\nbascule top\n```\n", "directly above"),
        ("```sh\nbascule top\n", "no ``` ends"),
    ],
)
def test_a_block_that_nothing_runs_is_refused(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.documents.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}")
    with pytest.raises(PageError, match=expected):
        read_page(page)


def test_marks_and_blocks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.documents.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n<!-- page: continues other.md -->\n\n<!-- run first:\nbascule serve &\n-->\n"
        "<!-- with Spark -->\n<!-- file: a.toml -->\n```toml\na = 1\n```\n"
        "* an item\n  ```python\n  if a:\n      pass\n  ```\n"
    )
    found = read_page(page)
    assert found.continues == "other.md"
    hidden, declared, indented = found.steps
    assert (hidden.text, hidden.hidden, hidden.line) == ("bascule serve &", True, 6)
    assert declared.marks == {"with Spark": "", "file": "a.toml"}
    assert (indented.language, indented.text, indented.line) == (
        "python", "if a:\n    pass\n", 15,
    )  # fmt: skip
    assert found.runs_with_spark
    assert found.runs_without_spark
