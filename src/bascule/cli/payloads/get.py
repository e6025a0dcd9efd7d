"""`bascule get`: reads a payload into a file."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from bascule.cli.output import ServerOption, StreamArgument, err, out
from bascule.cli.payloads.bars import byte_bar
from bascule.cli.payloads.part_file import PartFile, PartOf
from bascule.errors import ConfigError, PayloadDamaged

STDOUT: Final = ("-", "/dev/stdout")


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
    right. Where the command ends early, it goes on with that file the next time, if FILE.part.json
    says that it is of the same payload and range. Where FILE is a link, that is done to what it
    leads to. A device or a pipe is written to as it is.
    """  # fmt: skip
    start, end = _range(bytes)
    if output in STDOUT:
        asyncio.run(_to_open(server, stream, partition, offset, start, end, sys.stdout.buffer))
        return
    target = Path(output or f"{stream}-{partition}-{offset}")
    if target.is_dir():
        raise ConfigError(f"--output {target} is a directory, expected a file")
    if target.exists() and not target.is_file():  # nothing can take its place
        with target.open("wb") as file:
            size = asyncio.run(_to_open(server, stream, partition, offset, start, end, file))
    else:
        file_path = Path(os.path.realpath(target))  # a link stays, and so does FILE.part beside it
        size = asyncio.run(_to_file(server, stream, partition, offset, start, end, file_path))
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


def _check_start(start: int, end: int | None, size: int) -> None:
    """Raises: ConfigError for a range behind the end of a payload."""
    if start > size or (start == size and start and end != start):
        raise ConfigError(f"--bytes {start}-{'' if end is None else end}: it has {size:,} bytes")


async def _to_open(
    server: str | None,
    stream: str,
    partition: int,
    offset: int,
    start: int,
    end: int | None,
    file: BinaryIO,
) -> int:
    """The bytes that were written. Raises: as `PayloadReader`; ConfigError, OSError."""
    import bascule

    size = 0
    async with (
        bascule.connect(server) as client,
        client.read_payload(stream, offset, partition=partition, start=start, end=end) as payload,
    ):
        _check_start(start, end, payload.size)
        async for chunk in payload:
            await asyncio.to_thread(file.write, chunk)
            size += len(chunk)
        file.flush()
    return size


async def _to_file(
    server: str | None,
    stream: str,
    partition: int,
    offset: int,
    start: int,
    end: int | None,
    target: Path,
) -> int:
    """The bytes of the file. Raises: as `PayloadReader`; ConfigError, OSError."""
    import bascule

    async with bascule.connect(server) as client:
        async with client.read_payload(stream, offset, partition=partition) as found:
            id, whole, crc32c = found.id, found.size, found.crc32c
        _check_start(start, end, whole)
        total = max((whole if end is None else min(end, whole)) - start, 0)
        part = PartFile(
            target, PartOf(id, start, end), total, is_whole=(start, total) == (0, whole)
        )
        have = await asyncio.to_thread(part.open)
        if part.why_anew:
            err.print(f"{part.path} {part.why_anew}: it begins anew", markup=False)
        if have:
            err.print(f"going on behind {have:,} bytes of {part.path}", markup=False)
        try:
            if have < total or not total:
                async with client.read_payload(
                    stream, offset, partition=partition, start=start + have, end=end
                ) as payload:
                    with byte_bar(target.name, total=total) as (bar, task):
                        bar.update(task, completed=have)
                        async for chunk in payload:
                            await asyncio.to_thread(part.write, chunk)
                            bar.advance(task, len(chunk))
        finally:
            await asyncio.to_thread(part.close)
    if part.size != total or (part.is_whole and part.crc != crc32c):
        part.remove()
        found_text = f"{part.size} bytes, {part.crc:08x}"
        raise PayloadDamaged(
            id, f"size and checksum of {part.path}", found_text, f"{total} bytes, {crc32c:08x}"
        )
    part.rename()
    return part.size
