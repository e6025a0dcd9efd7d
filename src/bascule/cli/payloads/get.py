"""`bascule get`: reads a payload into a file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from crc32c import crc32c

from bascule.cli.output import ServerOption, StreamArgument, err, out
from bascule.cli.payloads.bars import byte_bar
from bascule.errors import ConfigError, PayloadDamaged

READ_BYTES: Final = 1 << 20
PART: Final = ".part"


def get(
    stream: StreamArgument,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Offset of the record.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it; - is standard output.",
            show_default="STREAM-PARTITION-OFFSET",
        ),
    ] = None,
    partition: Annotated[int, typer.Option(min=0, help="Partition of the record.")] = 0,
    bytes: Annotated[
        str | None,
        typer.Option(metavar="START-END", help="Only these bytes; the END is not included."),
    ] = None,
    server: ServerOption = None,
) -> None:
    """Read the payload of a record into a file, from any replica that has it.

    The content is written to FILE.part, which is renamed once all has come and the checksum is
    right. Where the command ends early, it goes on with that file the next time.
    """  # fmt: skip
    start, end = _range(bytes)
    if output == "-":
        asyncio.run(_to_stdout(server, stream, partition, offset, start, end))
        return
    target = Path(output or f"{stream}-{partition}-{offset}")
    if target.is_dir():
        raise ConfigError(f"--output {target} is a directory, expected a file")
    size = asyncio.run(_to_file(server, stream, partition, offset, start, end, target))
    out.print(f"{size:,} bytes in {target}", markup=False)


def _range(text: str | None) -> tuple[int, int | None]:
    """Raises: ConfigError."""
    if text is None:
        return 0, None
    first, dash, last = text.partition("-")
    if not dash or not first.isdecimal() or not (last.isdecimal() or not last):
        raise ConfigError(f"--bytes {text!r}: expected START-END, such as 0-1000, or START-")
    start, end = int(first), int(last) if last else None
    if end is not None and end < start:
        raise ConfigError(f"--bytes {text!r}: the end is below the start")
    return start, end


async def _to_stdout(
    server: str | None, stream: str, partition: int, offset: int, start: int, end: int | None
) -> None:
    import bascule

    async with (
        bascule.connect(server) as client,
        client.read_payload(stream, offset, partition=partition, start=start, end=end) as payload,
    ):
        async for chunk in payload:
            await asyncio.to_thread(sys.stdout.buffer.write, chunk)
        sys.stdout.buffer.flush()


async def _to_file(
    server: str | None,
    stream: str,
    partition: int,
    offset: int,
    start: int,
    end: int | None,
    target: Path,
) -> int:
    """The bytes of the file. Raises: as `PayloadReader`; OSError."""
    import bascule

    part = target.with_name(target.name + PART)
    with await asyncio.to_thread(part.open, "ab") as file:
        have = file.tell()
        crc = await asyncio.to_thread(_crc_of, part) if have else 0
        if have:
            err.print(f"going on behind {have:,} bytes of {part}", markup=False)
        async with (
            bascule.connect(server) as client,
            client.read_payload(
                stream, offset, partition=partition, start=start + have, end=end
            ) as payload,
        ):
            total = (payload.size if end is None else min(end, payload.size)) - start
            with byte_bar(target.name, total=total) as (bar, task):
                bar.update(task, completed=have)
                async for chunk in payload:
                    await asyncio.to_thread(file.write, chunk)
                    crc = crc32c(chunk, crc)
                    bar.advance(task, len(chunk))
        size = file.tell()
    is_whole = start == 0 and size == payload.size
    if is_whole and crc != payload.crc32c:
        part.unlink()
        raise PayloadDamaged(
            payload.id, f"checksum of {part}", f"{crc:08x}", f"{payload.crc32c:08x}"
        )
    part.rename(target)
    return size


def _crc_of(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            crc = crc32c(data, crc)
    return crc
