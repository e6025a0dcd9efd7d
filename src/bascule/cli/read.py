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
    from bascule.client import Consumer, GroupConsumer, Message, SyncClient, SyncConsumer
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
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="Be a member of this group, which shares the partitions, and commit printed "
            "messages.",
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
    _check_options(consumer, group, order, partition)
    where = parse_position(start)
    if limit == 0:
        return
    with bascule.connect_sync(server) as client:
        if consumer is None and group is None:
            with client.read_batches(
                name, start=where, follow=follow, partition=partition,
                order="timestamp" if order == "timestamp" else "partition",
            ) as batches:  # fmt: skip
                show = _format(json=json, values=values, partitions=len(batches.ranges))
                messages = (message for batch in batches for message in messages_of(batch))
                _print(islice(messages, limit), show, at_once=follow)
            return
        chosen = None if partition is None else [partition]
        count = len(client.stream(name).partitions if chosen is None else chosen)
        show = _format(json=json, values=values, partitions=count)
        with _consumer(client, name, consumer, group, where, chosen, follow=follow) as resumed:
            _print(islice(resumed, limit), show, at_once=True)


def _consumer(
    client: SyncClient,
    stream: str,
    consumer: str | None,
    group: str | None,
    start: Start,
    partitions: list[int] | None,
    *,
    follow: bool,
) -> SyncConsumer[Consumer] | SyncConsumer[GroupConsumer]:
    """The consumer of a name, or a member of a group."""
    if group is not None:
        return client.consume(stream, group=group, start=start, follow=follow)
    assert consumer is not None
    return client.consume(stream, consumer, start=start, follow=follow, partitions=partitions)


def _check_options(
    consumer: str | None, group: str | None, order: str, partition: int | None
) -> None:
    """Raises: BadParameter for options that exclude each other."""
    given = {
        "--consumer": consumer is not None,
        "--group": group is not None,
        "--order timestamp": order != "partition",
        "--partition": partition is not None,
    }
    for pair in (
        ("--order timestamp", "--consumer"),
        ("--order timestamp", "--group"),
        ("--consumer", "--group"),
        ("--partition", "--group"),
    ):
        if all(given[option] for option in pair):
            raise typer.BadParameter(f"{pair[0]} and {pair[1]} are both given")


def _format(*, json: bool, values: bool, partitions: int) -> Callable[[Message], bytes]:
    if json:
        return as_json
    if values:
        return as_value
    return as_text if partitions == 1 else as_partition_text


def _print(messages: Iterable[Message], show: Callable[[Message], bytes], *, at_once: bool) -> None:
    """Print messages, each `at_once` where committed messages must have been printed."""
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
