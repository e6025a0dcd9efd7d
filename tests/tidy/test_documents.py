"""What the documents point at is there: files, tests, sections of the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)\)")
STEPS = re.compile(r"`([\w/]+\.py):(\w+)`")
TESTS = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_tests_exist(document: Path) -> None:
    for file, name in TESTS.findall(document.read_text()):
        path = ROOT / file
        assert path.exists(), f"{document.name} names {file}"
        if name:
            defined = {
                node.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert name in defined, f"{document.name} names {file}::{name}"


def test_the_walks_of_the_architecture_name_real_functions() -> None:
    steps = STEPS.findall((ROOT / "ARCHITECTURE.md").read_text())
    assert len(steps) > 30, "message, decision, Raft proposal and Spark row"
    for file, name in steps:
        path = ROOT / "src" / "bascule" / file
        assert path.exists(), f"ARCHITECTURE.md names {file}"
        defined = {
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in defined, f"ARCHITECTURE.md names {file}:{name}"


def test_every_invariant_has_a_number_and_a_checker() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text()
    items = re.split(r"^(\d+)\. ", text, flags=re.MULTILINE)[1:]
    numbers, bodies = [int(n) for n in items[::2]], items[1::2]
    assert numbers == list(range(1, len(numbers) + 1))
    for number, body in zip(numbers, bodies, strict=True):
        assert "*Checked by*" in body, f"invariant {number} names no checker"


def test_decisions_say_what_was_given_up() -> None:
    for path in (ROOT / "docs" / "decisions").glob("*.md"):
        text = path.read_text()
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name), path.name
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        for part in ("**Context.**", "**Choice.**", "**What was given up.**"):
            assert part in text, f"{path.name} lacks {part}"


def test_the_table_of_exit_codes_is_whole() -> None:
    from bascule.cli import exit_codes

    readme = " ".join((ROOT / "README.md").read_text().split())
    for code, _ in exit_codes.EXPLAINED:
        assert re.search(rf"[ :]{code} \w", readme), f"README.md lacks exit code {code}"
