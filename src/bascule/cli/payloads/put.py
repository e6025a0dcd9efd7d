"""`bascule put`: sends files as payloads."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bascule.cli.output import JsonOption, ServerOption, StreamArgument, err, out, print_json
from bascule.cli.payloads.bars import byte_bar
from bascule.cli.standard_input import stdin_chunks
from bascule.errors import BasculeError, ConfigError, PayloadDamaged

if TYPE_CHECKING:
    from bascule.client import Client
    from bascule.client.payloads import PayloadAck

READ_BYTES: Final = 1 << 20
STDIN: Final = "-"

FilesArgument = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="The files to send; - is standard input."),
]
SubjectOption = Annotated[
    str | None,
    typer.Option(
        "--subject",
        help="Subject of the record; needed where the stream has more than one. With several "
        "files {name} is the name of each.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", help="Key of the record; {name} is the name of the file."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="'NAME: TEXT'", help="A header. Repeatable."),
]


def put(
    stream: StreamArgument,
    files: FilesArgument,
    subject: SubjectOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Partition; by default as for a message.")
    ] = None,
    topology: Annotated[
        str, typer.Option(help="How the nodes pass it on: auto, chain, star or tree.")
    ] = "auto",
    quorum: Annotated[
        bool, typer.Option("--quorum", help="Wait for a majority of the replicas while it is sent.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Go on with a payload that was not closed; one FILE."),
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Send files of any size to a stream, each as one record with a payload.

    The nodes pass the content on to all replicas while it comes, and the record is stored once
    each of them has it. `bascule get` reads it. Prints the ack of each record.

    Where a node fails, another one goes on. The command begins by printing the id of the payload
    to standard error: where it ends early, `--resume ID` with the same file sends what is missing.
    """
    if resume is not None and (len(files) != 1 or files[0] == STDIN):
        raise ConfigError("--resume needs one FILE, which can be read again from its beginning")
    headers = tuple(_header(text) for text in header or [])

    async def run() -> None:
        import bascule

        async with bascule.connect(server) as client:
            for file in files:
                name = "stdin" if file == STDIN else Path(file).name
                ack = await _send(
                    client, stream, file,
                    subject=subject and subject.replace("{name}", name),
                    key=key and key.replace("{name}", name),
                    headers=headers, partition=partition, topology=topology, quorum=quorum,
                    payload_id=resume,
                )  # fmt: skip
                _report(file, ack, json=json)

    asyncio.run(run())


async def _send(
    client: Client,
    stream: str,
    file: str,
    *,
    subject: str | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    partition: int | None,
    topology: str,
    quorum: bool,
    payload_id: str | None,
) -> PayloadAck:
    """Raises: as `PayloadWriter`; OSError."""
    size = _size(file)
    with byte_bar(file, total=size) as (bar, task):
        writer = client.open_payload(
            stream, subject=subject, key=key, headers=headers, partition=partition, size=size,
            topology=topology, quorum=quorum, payload_id=payload_id,
            on_progress=lambda done: bar.update(task, completed=done),
        )  # fmt: skip
        try:
            async with writer:
                if payload_id is None:
                    # Before anything is sent: after a kill -9 nobody else knows it.
                    err.print(f"{file}: payload {writer.id}", markup=False, highlight=False)
                err.print(f"{file}: {writer.why}", markup=False, highlight=False)
                if file == STDIN:
                    await writer.write_from(stdin_chunks(READ_BYTES))
                else:
                    await writer.write_from(Path(file))
        except PayloadDamaged:
            if payload_id is not None:
                err.print(
                    f"{file} is not what was sent as payload {payload_id}: give that file, or send "
                    "this one without --resume",
                    markup=False,
                )
            raise
        except (BasculeError, KeyboardInterrupt, asyncio.CancelledError):
            if file != STDIN and writer.acknowledged:
                err.print(
                    f"{writer.acknowledged:,} bytes of {file} are there for some minutes: go on "
                    f"with --resume {writer.id}",
                    markup=False,
                )
            raise
    assert writer.ack is not None
    return writer.ack


def _size(file: str) -> int | None:
    """Raises: ConfigError for a directory, and for a file that cannot be looked at."""
    if file == STDIN:
        return None
    try:
        found = Path(file).stat()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"{file} cannot be read: {why}") from error
    if stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{file} is a directory, expected a file")
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(f"--header {text!r}: expected 'NAME: TEXT'")
    return name.strip(), value.strip()


def _report(file: str, ack: PayloadAck, *, json: bool) -> None:
    if json:
        fields = {**ack._asdict(), "payload_crc32c": f"{ack.payload_crc32c:08x}", "file": file}
        print_json(fields, indent=False)
        return
    synced = "synced" if ack.synced else "not synced"
    replicas = "1 replica" if ack.replicas == 1 else f"{ack.replicas} replicas"
    out.print(
        f"{file}: {ack.payload_bytes:,} bytes at offset {ack.offset} of {ack.stream}, partition "
        f"{ack.partition}, on {replicas}, {synced}",
        markup=False,
    )
