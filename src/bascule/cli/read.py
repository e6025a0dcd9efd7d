"""`bascule read`: prints the messages of a stream from an offset, once or continuously."""

from __future__ import annotations

import base64
import json as json_text
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bascule.cli.completion import consumer_names
from bascule.cli.output import JsonOption, ServerOption, StreamArgument
from bascule.cli.units import parse_moment
from bascule.errors import ConfigError

if TYPE_CHECKING:
    from bascule.client import Message
    from bascule.client.batch_reader import Start

ORDERS: Final = ("partition", "timestamp")
POSITION_METAVAR: Final = "earliest|latest|OFFSET|TIME"
POSITION_HELP: Final = "TIME is ISO 8601, local without a zone, or 2h for two hours ago."


def read(
    name: StreamArgument,
    start: Annotated[
        str, typer.Option("--from", metavar=POSITION_METAVAR, help=f"Start. {POSITION_HELP}")
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
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition.", show_default="all")
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            metavar="|".join(ORDERS),
            help="Order of the messages: of each partition by itself, or of all by timestamp.",
        ),
    ] = "partition",
    consumer: Annotated[
        str | None,
        typer.Option(
            "--consumer",
            metavar="NAME",
            help="Continue at this consumer's committed offsets, and commit printed messages.",
            autocompletion=consumer_names,
        ),
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Print the messages of a stream: of all partitions, or of one.

    The messages of a partition come in their order. Messages of several partitions alternate in
    batches; with --order timestamp those that are stored when the command starts come in the order
    of their timestamps. An offset as start needs --partition if there are several.
    """
    import bascule
    from bascule.client.batch_reader import messages_of

    if order not in ORDERS:
        raise typer.BadParameter(f"--order {order!r} is not one of {', '.join(ORDERS)}")
    if consumer is not None and order != "partition":
        raise typer.BadParameter("--order timestamp and --consumer are both given")
    where = parse_position(start)
    if limit == 0:
        return
    with bascule.connect_sync(server) as client:
        if consumer is None:
            with client.read_batches(
                name, start=where, follow=follow, partition=partition,
                order="timestamp" if order == "timestamp" else "partition",
            ) as batches:  # fmt: skip
                show = _format(json=json, values=values, partitions=len(batches.ranges))
                messages = (message for batch in batches for message in messages_of(batch))
                _print(islice(messages, limit), show, at_once=follow)
        else:
            chosen = None if partition is None else [partition]
            count = len(client.stream(name).partitions if chosen is None else chosen)
            show = _format(json=json, values=values, partitions=count)
            with client.consume(
                name, consumer, start=where, follow=follow, partitions=chosen
            ) as resumed:
                # Flush each message, so that committed messages have been printed.
                _print(islice(resumed, limit), show, at_once=True)


def _format(*, json: bool, values: bool, partitions: int) -> Callable[[Message], bytes]:
    if json:
        return as_json
    if values:
        return as_value
    return as_text if partitions == 1 else as_partition_text


def _print(messages: Iterable[Message], show: Callable[[Message], bytes], *, at_once: bool) -> None:
    out = sys.stdout.buffer
    for message in messages:
        out.write(show(message))
        if at_once:
            out.flush()
    out.flush()


def parse_position(text: str, *, option: str = "--from") -> Start:
    """`earliest`, `latest`, an offset, a time, or a duration before now. Raises: ConfigError."""
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        at_ms = parse_moment(text, now_ms=time.time_ns() // 1_000_000)
        return datetime.fromtimestamp(max(at_ms, 0) / 1_000, UTC)
    except (typer.BadParameter, OverflowError):
        raise ConfigError(
            f"{option} {text!r} is not a position: expected earliest, latest, an offset such as "
            "42, a time such as 2026-01-31T12:00:00Z, or 2h for two hours ago"
        ) from None


def as_value(message: Message) -> bytes:
    return (message.value or b"") + b"\n"


def as_text(message: Message) -> bytes:
    """`offset time subject [key] value` in one line. Binary data is escaped."""
    return f"{message.offset:>8} {_content(message)}\n".encode()


def as_partition_text(message: Message) -> bytes:
    """The same, with `partition/offset`."""
    return f"{message.partition}/{message.offset:<8} {_content(message)}\n".encode()


def _content(message: Message) -> str:
    key = "" if message.key is None else f" [{_shown(message.key)}]"
    when = message.timestamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{message.timestamp_ms % 1_000:03d}Z"
    value = "(null)" if message.value is None else _shown(message.value)
    return f"{when} {message.subject}{key} {value}"


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
