"""`bascule get`: reads a payload into a file."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, NamedTuple

import typer

from bascule.cli.output import ServerOption, StreamArgument, err, out
from bascule.cli.payloads.bars import byte_bar
from bascule.cli.payloads.part_file import PartFile, PartOf
from bascule.errors import ConfigError, PayloadDamaged

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.client.payloads import PayloadReader

STDOUT: Final = ("-", "/dev/stdout")


class _Wanted(NamedTuple):
    """A range of the payload of one record."""

    stream: str
    partition: int
    offset: int
    start: int
    end: int | None
    """None: that of the payload."""

    def read(self, client: Client, *, have: int = 0) -> PayloadReader:
        """A reader of it behind the first `have` bytes."""
        return client.read_payload(
            self.stream,
            self.offset,
            partition=self.partition,
            start=self.start + have,
            end=self.end,
        )

    def check(self, size: int) -> None:
        """Raises: ConfigError for a range behind the end of a payload of `size` bytes."""
        start, end = self.start, self.end
        if start > size or (start == size and start and end != start):
            shown = "" if end is None else end
            raise ConfigError(f"--bytes {start}-{shown}: it has {size:,} bytes")


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
    wanted = _Wanted(stream, partition, offset, *_range(bytes))
    if output in STDOUT:
        asyncio.run(_to_open(server, wanted, sys.stdout.buffer))
        return
    target = Path(output or f"{stream}-{partition}-{offset}")
    if target.is_dir():
        raise ConfigError(f"--output {target} is a directory, expected a file")
    if target.exists() and not target.is_file():  # nothing can take its place
        with target.open("wb") as file:
            size = asyncio.run(_to_open(server, wanted, file))
    else:
        file_path = Path(os.path.realpath(target))  # a link stays, and so does FILE.part beside it
        size = asyncio.run(_to_file(server, wanted, file_path))
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


async def _to_open(server: str | None, wanted: _Wanted, file: BinaryIO) -> int:
    """The bytes that were written. Raises: as `PayloadReader`; ConfigError, OSError."""
    import bascule

    size = 0
    async with (
        bascule.connect(server) as client,
        wanted.read(client) as payload,
    ):
        wanted.check(payload.size)
        async for chunk in payload:
            await asyncio.to_thread(file.write, chunk)
            size += len(chunk)
        file.flush()
    return size


async def _to_file(server: str | None, wanted: _Wanted, target: Path) -> int:
    """The bytes of the file. Raises: as `PayloadReader`; ConfigError, OSError."""
    import bascule

    async with bascule.connect(server) as client:
        async with client.read_payload(
            wanted.stream, wanted.offset, partition=wanted.partition
        ) as found:
            id, whole, crc32c = found.id, found.size, found.crc32c
        wanted.check(whole)
        start, end = wanted.start, wanted.end
        total = max((whole if end is None else min(end, whole)) - start, 0)
        part_of = PartOf(id, whole, crc32c, start, end)
        part = PartFile(target, part_of, total, is_whole=(start, total) == (0, whole))
        have = await asyncio.to_thread(part.open)
        if part.why_anew:
            err.print(f"{part.path} {part.why_anew}: it begins anew", markup=False)
        if have:
            err.print(f"going on behind {have:,} bytes of {part.path}", markup=False)
        try:
            if have < total or not total:
                async with wanted.read(client, have=have) as payload:
                    _check_same(payload, part_of)
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


def _check_same(payload: PayloadReader, part_of: PartOf) -> None:
    """Raises: PayloadDamaged if the record at the offset names other content than before: the
    stream was deleted and made anew in between."""
    found = PartOf(payload.id, payload.size, payload.crc32c, part_of.start, part_of.end)
    if found != part_of:
        raise PayloadDamaged(
            part_of.id,
            "its record names",
            f"{found.id} of {found.payload_bytes:,} bytes, {found.payload_crc32c:08x}",
            f"{part_of.payload_bytes:,} bytes, {part_of.payload_crc32c:08x}",
        )
