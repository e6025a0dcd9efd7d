"""`bascule inspect`: shows the contents of a log file, and where it is corrupt."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bascule.cli import exit_codes
from bascule.cli.output import JsonOption, out, print_error, print_json
from bascule.controller.cluster.image_files.stored_image import DATABASE, read_stored_image
from bascule.errors import BasculeError, CorruptData
from bascule.host.api import File
from bascule.host.real import RealFiles
from bascule.model import RecordHeader
from bascule.record.batch import Record, RecordBatch
from bascule.record.header import BatchHeader
from bascule.replica import log_identity
from bascule.storage import checkpoint as checkpoint_file
from bascule.storage import epochs as epochs_file
from bascule.storage import synced_mark
from bascule.storage.appended_batches import has_gaps
from bascule.storage.checkpoint import decode_checkpoint
from bascule.storage.compaction import clean_offset, replacement_manifest
from bascule.storage.epochs import decode_epochs
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.sparse_index import SparseIndex
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.scan import check_offset, find_batch, scan_batches
from bascule.storage.segment import LOG_SUFFIX, base_offset_of
from bascule.storage.truncation import reset

Row = dict[str, Any]

ROWS_SHOWN: Final = 50
"""Rows of a table without `--limit`: about a screen."""
TEXT_SHOWN: Final = 60
TABLE_WIDTH: Final = 200
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A file of a log: .log, .index, .timeindex, leader-epochs, checkpoint, "
            "synced, identity, clean-offset, swap or reset.",
            exists=True,
            dir_okay=False,
        ),
    ],
    json: JsonOption = False,
    records: Annotated[
        bool, typer.Option("--records", help="Show the records of a segment, not its batches.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            help="Rows to show. The whole file is always checked.",
            show_default=f"{ROWS_SHOWN}, all with --json",
        ),
    ] = None,
) -> None:
    """Show a file of a log and check all of it.

    The command reads only the file. It also works beside a running node, whose last batch may be
    incomplete. It exits with 6 for corrupt data, after it has printed the rows before it.
    """
    rows = _rows_of(str(file.absolute()), records)
    damage = _print_lines(rows, limit) if json else _print_table(rows, limit, file.name)
    if damage is None:
        return
    if json:
        print_json({"damage": _damage_row(damage)}, indent=False)
    else:
        print_error(str(damage))
    raise typer.Exit(exit_codes.CORRUPT)


def _rows_of(path: str, records: bool) -> Iterator[Row]:
    """The rows of a file. Raises: CorruptData after the last valid row."""
    name = path.rpartition("/")[2]
    kinds: dict[str, Callable[[], Iterator[Row]]] = {
        LOG_SUFFIX: lambda: _segment_rows(path, records),
        OffsetIndex.SUFFIX: lambda: _index_rows(path, OffsetIndex, ("offset", "position")),
        TimeIndex.SUFFIX: lambda: _index_rows(path, TimeIndex, ("timestamp", "offset")),
        epochs_file.FILE_NAME: lambda: _epoch_rows(path),
        checkpoint_file.FILE_NAME: lambda: _checkpoint_rows(path),
        synced_mark.FILE_NAME: lambda: _mark_rows(path),
        log_identity.FILE_NAME: lambda: _identity_rows(path),
        clean_offset.FILE_NAME: lambda: _clean_offset_rows(path),
        replacement_manifest.FILE_NAME: lambda: _manifest_rows(path),
        reset.FILE_NAME: lambda: _checkpoint_rows(path),
    }
    kind = kinds.get(name) or kinds.get(Path(name).suffix)
    if kind is None:
        raise typer.BadParameter(f"{name} is not one of: *{', *'.join(list(kinds)[:3])}, "
                                 f"{', '.join(list(kinds)[3:])}")  # fmt: skip
    return kind()


def _segment_rows(path: str, records: bool) -> Iterator[Row]:
    file = RealFiles().open(path, write=False)
    # A renamed copy has no base offset in its name. Its first batch has it.
    offset = base_offset_of(path.rpartition("/")[2])
    position, size = 0, file.size()
    subject = _literal_subject(path) if records else None
    # Compaction may have removed the batch that a segment is named after.
    is_compacted = has_gaps(RealFiles(), path.rpartition("/")[0])
    try:
        for at, header in scan_batches(file, start=0, end=size):
            if offset is not None:
                gaps_allowed = at > 0 or is_compacted
                check_offset(header, path, at, offset=offset, gaps_allowed=gaps_allowed)
            if records:
                yield from _record_rows(file, at, header, subject)
            else:
                yield _batch_row(at, header)
            position = at + header.total_bytes
            offset = header.end_offset
    except CorruptData as damage:
        raise _with_what_follows(damage, file, position, size, offset or 0) from None


def _with_what_follows(
    damage: CorruptData, file: File, position: int, size: int, offset: int
) -> CorruptData:
    """Add to the error whether the damage is a torn tail or in the middle of the log."""
    behind = find_batch(file, start=position + 1, end=size, offset=offset, offset_max=offset + size)
    if behind is None:
        what = f"; no valid batch follows in the {size - position} bytes from byte {position} on"
    else:
        what = f"; a valid batch with offset {behind[1].base_offset} follows at byte {behind[0]}"
    return CorruptData(damage.file, damage.at, damage.expected, damage.found + what)


def _batch_row(position: int, header: BatchHeader) -> Row:
    return {
        "position": position,
        "bytes": header.total_bytes,
        "offset": header.base_offset,
        "end": header.end_offset,
        "records": header.record_count,
        "epoch": header.leader_epoch,
        "timestamp": header.max_timestamp,
        "time": "append" if header.is_log_append_time else "create",
        "codec": CODECS[header.codec] if header.codec < len(CODECS) else str(header.codec),
        "crc": f"{header.crc:#010x}",
    }


def _literal_subject(path: str) -> str | None:
    """The subject of the records without header `subject` in a segment: that of their stream.

    None if the segment is not in a data directory, or the stream's subject has wildcards. Damaged
    metadata does not prevent the inspection of a log.
    """
    directory = Path(path).parent
    files = RealFiles()
    try:
        identity = log_identity.read_identity(files, str(directory))
        data = directory.parents[2]
        if identity is None or not (data / DATABASE).exists():
            return None
        definition = read_stored_image(data).stream_of(identity.stream_id)
    except (BasculeError, OSError, IndexError):
        return None
    return None if definition is None else definition.config.literal_subject


def _subject_of(record: Record) -> bytes | None:
    name, value = record.headers[0] if record.headers else ("", None)
    return value if name == RecordHeader.SUBJECT else None


def _record_rows(
    file: File, position: int, header: BatchHeader, subject: str | None
) -> Iterator[Row]:
    data = file.read_at(position, header.total_bytes)
    try:
        for record in RecordBatch(data, origin=file.path):
            stored = _subject_of(record)
            yield {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "subject": subject if stored is None else _jsonable(stored),
                "key": _jsonable(record.key),
                "value": _jsonable(record.value),
                "headers": [[name, _jsonable(value)] for name, value in record.headers],
            }
    except CorruptData as damage:
        raise CorruptData(file.path, position + damage.at, damage.expected, damage.found) from None


def _index_rows(path: str, kind: type[SparseIndex], names: tuple[str, str]) -> Iterator[Row]:
    name = path.rpartition("/")[2]
    digits = name.partition(".")[0]
    base_offset = int(digits) if digits.isdigit() else 0
    decoded = kind.decode(RealFiles().read_bytes(path), path=path, base_offset=base_offset)
    for pair in decoded.pairs.entries():
        yield dict(zip(names, pair, strict=True))
    if decoded.damage is not None:
        raise decoded.damage


def _epoch_rows(path: str) -> Iterator[Row]:
    for entry in decode_epochs(RealFiles().read_bytes(path), path=path).entries:
        yield {"epoch": entry.number, "start": entry.start}


def _identity_rows(path: str) -> Iterator[Row]:
    found = log_identity.decode_identity(RealFiles().read_bytes(path), path=path)
    yield {"stream_id": found.stream_id.hex(), "partition": found.partition}


def _checkpoint_rows(path: str) -> Iterator[Row]:
    yield decode_checkpoint(RealFiles().read_bytes(path), path=path)._asdict()


def _mark_rows(path: str) -> Iterator[Row]:
    data = RealFiles().read_bytes(path)
    for slot in range(synced_mark.SLOTS):
        found = synced_mark.decode_slot(data, slot, path=path)
        if found is not None:
            yield {"slot": slot, **found._asdict()}


def _clean_offset_rows(path: str) -> Iterator[Row]:
    yield clean_offset.decode_clean_offset(RealFiles().read_bytes(path), path=path)._asdict()


def _manifest_rows(path: str) -> Iterator[Row]:
    found = replacement_manifest.decode_manifest(RealFiles().read_bytes(path), path=path)
    for base in found.removed:
        yield {"segment": base, "what": "goes", "bytes": None}
    for base, size in found.added:
        yield {"segment": base, "what": "comes", "bytes": size}


def _print_lines(rows: Iterator[Row], limit: int | None) -> CorruptData | None:
    try:
        for count, row in enumerate(rows):
            if limit is None or count < limit:
                print_json(row, indent=False)
    except CorruptData as damage:
        return damage
    return None


def _print_table(rows: Iterator[Row], limit: int | None, name: str) -> CorruptData | None:
    shown = ROWS_SHOWN if limit is None else limit
    kept: list[Row] = []
    count = 0
    damage = None
    try:
        for row in rows:
            if count < shown:
                kept.append(row)
            count += 1
    except CorruptData as error:
        damage = error
    if kept:
        cut = sys.stdout.isatty()
        table = _facts(kept[0], cut) if name == checkpoint_file.FILE_NAME else _table(kept, cut)
        # Columns are not truncated for a narrow terminal. Lines wrap, and pipes get everything.
        wide = Console(width=max(out.width, TABLE_WIDTH), highlight=False) if cut else out
        wide.print(table)
    if count > len(kept):
        out.print(f"... and {count - len(kept):,} more", style="dim")
    if damage is None:
        rest = "is empty" if count == 0 else f"is sound: {count:,} row{'s' if count > 1 else ''}"
        out.print(f"[green]{name} {rest}[/green]")
    return damage


def _table(rows: list[Row], cut: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, value in rows[0].items():
        table.add_column(title, justify="right" if _is_number(value) else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_shown(value, cut) for value in row.values()))
    return table


def _facts(row: Row, cut: bool) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in row.items():
        table.add_row(name, _shown(value, cut))
    return table


def _damage_row(damage: CorruptData) -> Row:
    return {
        "file": damage.file,
        "at": damage.at,
        "expected": damage.expected,
        "found": damage.found,
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object, cut: bool) -> str:
    """A cell: one line of printable text, truncated if `cut`, and without rich's markup."""
    if isinstance(value, list):
        value = "; ".join(f"{name}={_plain(content)}" for name, content in value)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in _plain(value))
    if cut and len(text) > TEXT_SHOWN:
        text = text[: TEXT_SHOWN - 1] + "…"
    return escape(text)


def _plain(value: object) -> str:
    if value is None:
        return "-"
    return f"base64:{value['base64']}" if isinstance(value, dict) else str(value)


def _jsonable(data: bytes | None) -> str | dict[str, str] | None:
    """UTF-8 as text, other bytes as base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
