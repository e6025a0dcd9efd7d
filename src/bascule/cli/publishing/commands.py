"""`bascule publish`: publishes messages from the command line or standard input and waits for
acks."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from bascule.cli import nats_options
from bascule.cli.output import JsonOption, ServerOption, err, out, print_json, print_warning
from bascule.cli.publishing.silence import SilenceNotice
from bascule.cli.standard_input import stdin_chunks
from bascule.cli.units import parse_duration
from bascule.errors import BasculeError, ConfigError, PublishRejected

if TYPE_CHECKING:
    from rich.progress import Progress

    from bascule.client import Ack, Acks, Client, Outgoing

STDIN_CHUNK_BYTES: Final = 1 << 16


ValueArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[VALUE]",
        help="The message. Without VALUE (or with -), each line of standard input is a message.",
    ),
]
SeparatorOption = Annotated[
    str | None,
    typer.Option(help="Separator of KEY and VALUE in a line; a line without it has no key."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="'NAME: TEXT'", help="A header. Repeatable."),
]


@dataclass(frozen=True, slots=True)
class Template:
    """The common part of all messages of one command."""

    subject: str
    key: str | None
    headers: tuple[tuple[str, str], ...]
    key_separator: str | None = None

    def check(self) -> None:
        """Raises: ConfigError for a key or headers that no message can carry."""
        from bascule.client.messages import encode_block

        try:
            encode_block(self.key, self.headers)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def message(self, value: bytes) -> Outgoing:
        from bascule.client import Outgoing

        key: bytes | str | None = self.key
        if self.key_separator is not None:
            before, found, after = value.partition(self.key_separator.encode())
            key, value = (before, after) if found else (self.key, value)
        return Outgoing(self.subject, value, key, self.headers or None)


class PublishOptions(TypedDict, total=False):
    """Arguments of `Client.publish_many` that the options of the command set."""

    window: int
    stream: str | None
    on_other_reply: Callable[[int, Ack | BasculeError], None]
    reply_wait: float


class OtherReplies:
    """The replies beside the acks that count: of further streams on the subject."""

    def __init__(self) -> None:
        self.acks: dict[tuple[int, str], Ack] = {}
        """Of the first message; by number and stream."""
        self.counts: Counter[str] = Counter()
        """Stream -> acked messages."""
        self.errors: Counter[str] = Counter()
        """Text -> messages."""

    def add(self, index: int, reply: Ack | BasculeError) -> None:
        if isinstance(reply, BasculeError):
            by = reply.stream if isinstance(reply, PublishRejected) else ""
            self.errors[f"stream {by}: {reply}" if by else str(reply)] += 1
            return
        if index == 0:
            self.acks[index, reply.stream] = reply
        self.counts[reply.stream] += 1

    def report(self, acks: Acks, *, json: bool) -> None:
        """Print what further streams replied. A repeated ack of the same stream is none."""
        if len(acks) == 1:
            for ack in self.acks.values():
                if ack.stream != acks[0].stream:
                    _report_ack(ack, json=json)
        elif not json:
            for stream, count in sorted(self.counts.items()):
                if acks.names != [stream]:
                    out.print(f"  {count:,} of them acknowledged by stream {stream} as well")
        for text, count in sorted(self.errors.items()):
            print_warning(text if count == 1 else f"{text} ({count:,} messages)")


def publish(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="NATS subject to publish on.")],
    value: ValueArgument = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the message.")] = None,
    key_separator: SeparatorOption = None,
    header: HeaderOption = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Number of times to publish VALUE.")
    ] = 1,
    window: Annotated[int, typer.Option(min=1, help="Messages without ack at a time.")] = 5_000,
    stream: Annotated[
        str | None,
        typer.Option(help="Stream whose ack counts, if several streams use the subject."),
    ] = None,
    wait: Annotated[
        int | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            help="Time to wait for acks of further streams: 250ms, with --stream none.",
        ),
    ] = None,
    nats: nats_options.Servers = None,
    user: nats_options.User = None,
    password: nats_options.Password = None,
    token: nats_options.Token = None,
    nkey: nats_options.Nkey = None,
    creds: nats_options.Creds = None,
    tls_ca: nats_options.TlsCa = None,
    tls_cert: nats_options.TlsCert = None,
    tls_key: nats_options.TlsKey = None,
    tls_first: nats_options.TlsFirst = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Publish messages to a subject. Wait until a stream has stored each of them."""
    import bascule

    template = Template(subject, key, _headers(header or []), key_separator)
    template.check()
    from_stdin = value is None or value == "-"
    if from_stdin and count != 1:
        raise ConfigError("--count needs a VALUE")

    told = nats_options.NatsArguments(
        nats=nats, user=user, password=password, token=token, nkey=nkey, creds=creds,
        nkey_seed=os.environ.get("BASCULE_NATS_NKEY_SEED"),
        tls=nats_options.tls_context(tls_ca, tls_cert, tls_key), tls_first=tls_first,
    )  # fmt: skip

    others = OtherReplies()
    options = PublishOptions(window=window, stream=stream)
    if stream is None and wait != 0:
        options["on_other_reply"] = others.add
        if wait is not None:
            options["reply_wait"] = wait / 1_000

    async def run() -> Acks:
        async with bascule.connect(server, **told) as client:
            if from_stdin:
                return await _publish_lines(client, template, options)
            assert value is not None
            message = template.message(value.encode())
            return await _publish_count(client, message, count, options)

    try:
        acks = asyncio.run(run())
    except ValueError as error:  # the key in a line
        raise ConfigError(str(error)) from error
    _report(acks, json=json)
    others.report(acks, json=json)


def _headers(given: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in given:
        name, colon, rest = text.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"header {text!r} does not have the form 'Name: text'")
        pairs.append((name.strip(), rest.strip()))
    return tuple(pairs)


async def _publish_count(
    client: Client, message: Outgoing, count: int, options: PublishOptions
) -> Acks:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    notice = SilenceNotice()

    def repeated() -> Iterator[Outgoing]:
        for _ in range(count):
            notice.sent += 1
            yield message

    bar = Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=err, transient=True,
        disable=count == 1 or not err.is_terminal,
    )  # fmt: skip
    return await _publish_all(client, repeated(), options, notice, bar, total=count)


async def _publish_lines(client: Client, template: Template, options: PublishOptions) -> Acks:
    from rich.progress import Progress, SpinnerColumn, TextColumn

    notice = SilenceNotice()

    async def messages() -> AsyncIterator[Outgoing]:
        async for line in stdin_lines():
            message = template.message(line)
            notice.sent += 1
            yield message

    bar = Progress(
        SpinnerColumn(), TextColumn("{task.completed:,} acknowledged"), console=err,
        transient=True, disable=not err.is_terminal or sys.stdin.isatty(),
    )  # fmt: skip
    return await _publish_all(client, messages(), options, notice, bar)


async def _publish_all(
    client: Client,
    messages: Iterable[Outgoing] | AsyncIterable[Outgoing],
    options: PublishOptions,
    notice: SilenceNotice,
    bar: Progress,
    *,
    total: int | None = None,
) -> Acks:
    """Publish, show how many are acknowledged, and say so where none is for long."""
    with bar:
        task = bar.add_task("", total=total)

        def on_progress(done: int) -> None:
            notice.on_progress(done)
            bar.update(task, completed=done)

        async with notice.watching():
            return await client.publish_many(messages, **options, on_progress=on_progress)


async def stdin_lines() -> AsyncIterator[bytes]:
    """The lines of standard input as they arrive, without line ends. The last line needs none.
    Raises: OSError."""
    rest = b""
    async for chunk in stdin_chunks(STDIN_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


def _report(acks: Acks, *, json: bool) -> None:
    if json:
        for ack in acks:
            _report_ack(ack, json=True)
    elif len(acks) == 1:
        _report_ack(acks[0], json=False)
    elif len(acks):
        partitions = len(set(acks.partitions))
        where = (
            f"offsets {min(acks.offsets):,} to {max(acks.offsets):,}"
            if partitions == 1
            else f"in {partitions} partitions"
        )
        out.print(f"[green]✓[/green] {len(acks):,} messages acknowledged, {where}")
    else:
        err.print("nothing to publish: standard input was empty")


def _report_ack(ack: Ack, *, json: bool) -> None:
    if json:
        print_json(ack._asdict(), indent=False)
        return
    promise = "synced" if ack.synced else "not synced yet"
    out.print(
        f"[green]✓[/green] {ack.stream} partition {ack.partition} offset {ack.offset}"
        f"  [dim]{promise}, replicas {ack.replicas}[/dim]"
    )
