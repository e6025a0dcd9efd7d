"""`bascule read`: prints the messages of a stream from an offset, once or continuously."""

from __future__ import annotations

import base64
import json as json_text
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from bascule.cli.output import JsonOption, ServerOption
from bascule.errors import ConfigError

if TYPE_CHECKING:
    from bascule.client import Message
    from bascule.client.batch_reader import Start


def read(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET|TIME",
            help="Start position; TIME is ISO 8601, local without a zone.",
        ),
    ] = "earliest",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages at the end.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Number of messages to print.")
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Print only the values, one per line.")
    ] = False,
    partition: Annotated[int, typer.Option(min=0, help="Partition to read.")] = 0,
    consumer: Annotated[
        str | None,
        typer.Option(
            "--consumer",
            metavar="NAME",
            help="Continue at this consumer's committed offset, and commit printed messages.",
        ),
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Print the messages of a stream."""
    import bascule

    where = parse_start(start)
    show: Callable[[Message], bytes] = as_json if json else as_value if values else as_text
    if limit == 0:
        return
    with bascule.connect_sync(server) as client:
        if consumer is None:
            messages = client.read(name, start=where, follow=follow, partition=partition)
            _print(islice(messages, limit), show, at_once=follow)
        else:
            with client.consume(
                name, consumer, start=where, follow=follow, partitions=[partition]
            ) as resumed:
                # Flush each message, so that committed messages have been printed.
                _print(islice(resumed, limit), show, at_once=True)


def _print(messages: Iterable[Message], show: Callable[[Message], bytes], *, at_once: bool) -> None:
    out = sys.stdout.buffer
    for message in messages:
        out.write(show(message))
        if at_once:
            out.flush()
    out.flush()


def parse_start(text: str, *, option: str = "--from") -> Start:
    """`earliest`, `latest`, an offset or a time. Raises: ConfigError."""
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is not a position: expected earliest, latest, an offset such as "
            "42, or a time such as 2026-01-31T12:00:00Z"
        ) from None


def as_value(message: Message) -> bytes:
    return (message.value or b"") + b"\n"


def as_text(message: Message) -> bytes:
    """`offset time subject [key] value` in one line. Binary data is escaped."""
    key = "" if message.key is None else f" [{_shown(message.key)}]"
    when = message.timestamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{message.timestamp_ms % 1_000:03d}Z"
    value = "(null)" if message.value is None else _shown(message.value)
    return f"{message.offset:>8} {when} {message.subject}{key} {value}\n".encode()


def as_json(message: Message) -> bytes:
    """One JSON object in one line. Bytes that are not UTF-8 become `{"base64": ...}`."""
    body = {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        "subject": message.subject,
        "reply": message.reply,
        "key": _jsonable(message.key),
        "value": _jsonable(message.value),
        "headers": [[name, _jsonable(value)] for name, value in message.headers],
    }
    return json_text.dumps(body, ensure_ascii=False).encode() + b"\n"


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _jsonable(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
