"""What `--help` shows on 80 columns: of every command, and what is the same for all."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from bascule.cli.help.examples import EXAMPLES
from bascule.cli.main import command_line, main


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*path, name))


COMMANDS = dict(walk(get_command(command_line())))


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_nothing_is_cut(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, *path)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert not {"<str>", "<int>", "<bool>", "<path>"} & set(text.split()), "a type of Python"
    for parameter in COMMANDS[path].params:
        assert parameter.help, f"{parameter.name} has no text"
        for name in (*parameter.opts, *parameter.secondary_opts):
            assert name in text or parameter.metavar in text
        if parameter.envvar:
            assert f"[env var: {parameter.envvar}" in text


def test_a_switch_takes_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    lines = help_of(capsys, "stream", "list").splitlines()
    assert any(line.startswith("  --json       ") for line in lines)


def test_paragraphs_are_wrapped_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "  Settings that are left out get the node's defaults. Another configuration\n"
        "  under the same name is refused. Sizes are written as 10GiB, durations as 7d,\n"
    ) in help_of(capsys, "stream", "create")


@pytest.mark.parametrize(
    ("group", "first"),
    [("stream", "create"), ("node", "list"), ("cluster", "status"), ("table", "create")],
)
def test_groups_begin_with_what_comes_first(group: str, first: str) -> None:
    assert next(iter(COMMANDS[group,].commands)) == first


@pytest.mark.parametrize(
    ("words", "line"),
    [(words, line) for words, lines in EXAMPLES.items() for line in lines],
    ids=lambda text: text,
)
def test_examples_are_commands(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in help_of(capsys, *words.split())
    for part in line.replace("|", "&&").split("&&"):
        program, *arguments = shlex.split(part)
        if program != "bascule":
            continue
        depth = 2 if (*arguments[:2],) in COMMANDS else 1
        context: Context = COMMANDS[(*arguments[:depth],)].make_context("x", arguments[depth:])
        assert context.params
