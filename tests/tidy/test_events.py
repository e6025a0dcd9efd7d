"""Every log event of the node is documented as it is, and every documented one is logged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "bascule"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
LIBRARY = ("client", "pipeline", "cli", "nats_connection")
"""What runs in other people's programs, whose log need not show fields."""
FREE_FIELDS = "each changed setting"
"""Stands in the table for fields whose names depend on the event's data."""


@dataclass(frozen=True)
class Event:
    text: str
    level: str
    fields: frozenset[str]
    where: str


def log_calls() -> Iterator[tuple[str, ast.Call, ast.AST]]:
    """Each call of `log.<level>` in the node's code, with the function it stands in."""
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        if relative.parts[0] in LIBRARY:
            continue
        tree = ast.parse(path.read_text())
        for scope in ast.walk(tree):
            if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and is_log(node.func):
                    yield f"{relative.as_posix()}:{node.lineno}", node, scope


def is_log(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LEVELS
        and isinstance(function.value, ast.Name)
        and function.value.id == "log"
    )


def texts_of(argument: ast.expr) -> list[str] | None:
    """The event of a call, or the two between which it chooses."""
    if isinstance(argument, ast.IfExp):
        chosen = [texts_of(argument.body), texts_of(argument.orelse)]
        return None if None in chosen else [text for texts in chosen for text in texts or ()]
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return [argument.value]
    return None


def keys_of(mapping: ast.expr, scope: ast.AST) -> set[str]:
    """The keys of a dictionary that is written out, there or in the lines above."""
    if isinstance(mapping, ast.Dict):
        return {key.value if isinstance(key, ast.Constant) else FREE_FIELDS for key in mapping.keys}
    assert isinstance(mapping, ast.Name)
    found: set[str] = set()
    for node in ast.walk(scope):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == mapping.id:
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            found |= keys_of(node.value, scope)
        elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == mapping.id:
            found.add(ast.literal_eval(target.slice))
    return found


def logged() -> list[Event]:
    events = []
    for where, call, scope in log_calls():
        function = call.func
        assert isinstance(function, ast.Attribute)
        texts = texts_of(call.args[0])
        assert texts is not None, f"{where}: an event is a fixed text; put data into extra"
        assert len(call.args) == 1, f"{where}: put data into extra, not into the event"
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        found = keys_of(named["extra"], scope) if "extra" in named else set()
        if function.attr == "exception" or "exc_info" in named:
            found.add("exception")
        level = "error" if function.attr == "exception" else function.attr
        events += [Event(text, level, frozenset(found), where) for text in texts]
    return events


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Event -> level and fields, of the tables in docs/events.md."""
    text = (ROOT / "docs" / "events.md").read_text()
    table = {}
    for row in re.findall(
        r"^\| `(.+?)` \| (\w+) \| (.*?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE
    ):
        event, level, fields, meaning, todo = row
        assert event not in table, f"docs/events.md lists {event!r} twice"
        assert meaning.strip(), event
        assert todo.strip(), event
        names = frozenset(name.strip() for name in fields.split(",") if name.strip())
        table[event] = (level, names)
    return table


def test_every_event_is_documented_with_its_level_and_fields() -> None:
    table = documented()
    wrong = []
    for event in logged():
        if event.text not in table:
            wrong.append(f"{event.where}: {event.text!r} is missing")
            continue
        level, fields = table[event.text]
        if level != event.level:
            wrong.append(f"{event.where}: {event.text!r} is {event.level}, documented {level}")
        if fields != event.fields:
            wrong.append(
                f"{event.where}: {event.text!r} has {', '.join(sorted(event.fields))}; "
                f"documented {', '.join(sorted(fields))}"
            )
    assert not wrong, "docs/events.md:\n" + "\n".join(wrong)


def test_every_documented_event_is_logged() -> None:
    gone = documented().keys() - {event.text for event in logged()}
    assert not gone, f"docs/events.md lists what nothing logs: {sorted(gone)}"
