"""The text of `--help` for one command or group."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from bascule.cli.help.examples import EXAMPLES

WIDTH_MAX: Final = 100
"""Columns, also on a wider terminal."""
NAMES_MAX: Final = 28
"""Longer names of an option stand on a line of their own."""
INDENT: Final = "  "
NO_BREAK: Final = "\N{NO-BREAK SPACE}"

TYPES: Final = {"<int>": "N", "<float>": "N", "<int range>": "N", "<path>": "FILE"}
"""What Typer calls a type, and what a value of it is called here; others are a TEXT."""

Rows: TypeAlias = list[tuple[str, str]]
"""Names, and what is said of them."""
F = TypeVar("F", bound=Callable[..., Any])


class HelpCommand(TyperCommand):
    """A command with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx, width=formatter.width))


class HelpGroup(TyperGroup):
    """A group of commands with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx, width=formatter.width))


class CommandGroup(typer.Typer):
    """A group whose commands have this help."""

    def __init__(self, **options: Any) -> None:
        settings = {"max_content_width": WIDTH_MAX, **options.pop("context_settings", {})}
        super().__init__(cls=HelpGroup, no_args_is_help=True, context_settings=settings, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        return super().command(name, **{"cls": HelpCommand, **options})


def help_text(command: Any, context: Any, *, width: int) -> str:
    """The whole text, which ends with a line end. No line is longer than `width`, unless one word
    or an example is."""
    usage = f"Usage: {context.command_path} {' '.join(_usage(command, context))}"
    parts = [[*_wrapped(usage, width, later=INDENT * 2)]]
    parts += [[*_wrapped(text, width, INDENT)] for text in _paragraphs(command.help or "")]
    for title, rows in _sections(command, context):
        heading = typer.style(f"{title}:", bold=True)
        parts.append([heading, *_listed(rows, width)])
    words = context.command_path.partition(" ")[2]
    if found := EXAMPLES.get(words):
        heading = typer.style("Examples:" if len(found) > 1 else "Example:", bold=True)
        parts.append([heading, *(INDENT + line for line in found)])
    if command.epilog:
        parts.append([*_wrapped(command.epilog, width)])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _usage(command: Any, context: Any) -> Iterator[str]:
    """The words behind the name: `{NAME}` of Typer is NAME, and `{FILE...}...` FILE..."""
    for piece in command.collect_usage_pieces(context):
        yield re.sub(r"^\{(.*?)\}(\.\.\.)?$|^\[(\[.*\])\]$", r"\1\3", piece)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if joined := " ".join(paragraph.split()):
            yield joined


def _sections(command: Any, context: Any) -> Iterator[tuple[str, Rows]]:
    """Arguments, options, those of each panel, and the commands of a group."""
    found: dict[str, Rows] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        is_argument = isinstance(parameter, TyperArgument)
        title = parameter.rich_help_panel or ("Arguments" if is_argument else "Options")
        found.setdefault(title, []).append((_names(record[0], is_argument), _about(record[1])))
    if isinstance(command, TyperGroup):
        found["Commands"] = [
            (name, next(_paragraphs(each.help or ""), ""))
            for name, each in command.commands.items()
            if not each.hidden
        ]
    return ((title, rows) for title, rows in found.items() if rows)


def _names(text: str, is_argument: bool) -> str:
    """The names of a parameter, with the name of its value."""
    if is_argument:
        return text.partition(" <")[0]
    return re.sub(r"<[^>]*>", lambda found: TYPES.get(found.group(), "TEXT"), text)


def _about(text: str) -> str:
    """What is said of a parameter. Behind two blanks Typer adds `[env var: NAME; default: (TEXT)]`,
    of which no item is to be broken."""
    said, behind, extra = text.rpartition("  [")
    if not behind and text.startswith("["):
        behind, extra = "[", text[1:]
    if not behind:
        return text
    extra = re.sub(r"default: \(([^()]*)\)", r"default: \1", extra)
    items = (item.replace(" ", NO_BREAK) for item in extra.split("; "))
    return f"{said} [{'; '.join(items)}".strip()


def _listed(rows: Rows, width: int) -> Iterator[str]:
    """Names on the left, and what is said of them on the right."""
    fitting = [len(names) for names, _ in rows if len(names) <= NAMES_MAX]
    column = max(fitting, default=NAMES_MAX) + 2 * len(INDENT)
    for names, about in rows:
        lines = [*_wrapped(about, width, " " * column)] or [""]
        shown = INDENT + typer.style(names, fg=typer.colors.CYAN)
        if len(names) <= NAMES_MAX:
            yield shown + lines[0][len(INDENT) + len(names) :]
            lines = lines[1:]
        else:
            yield shown
        yield from lines


def _wrapped(text: str, width: int, indent: str = "", later: str | None = None) -> Iterable[str]:
    lines = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent if later is None else later,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return (line.replace(NO_BREAK, " ") for line in lines)
