"""`bascule get`: reads a payload into a file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from bascule.cli.output import ServerOption, StreamArgument, err, out
from bascule.cli.payloads.bars import byte_bar
from bascule.cli.payloads.part_file import PartFile, PartOf
from bascule.errors import ConfigError, PayloadDamaged


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
    says that it is of the same payload and range.
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

    async with bascule.connect(server) as client:
        async with client.read_payload(stream, offset, partition=partition) as found:
            id, whole, crc32c = found.id, found.size, found.crc32c
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
