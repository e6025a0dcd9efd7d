"""Checks of lake tables before a run: address, partitioning, and a table that exists already.

A table on this machine is opened, because a run refuses one with other columns or another
partitioning. A table behind a catalog or in an object store is not: a check needs no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bascule.errors import BasculeError, ConfigError
from bascule.pipeline.declare.faults import DeclarationFaults
from bascule.pipeline.declare.sections import Declaration
from bascule.pipeline.jobs.tables import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.pipeline.lake.model import TableAddress

_STAND_INS: Final[Mapping[str, Any]] = {"name": "namespace.name", "location": "/", "catalog": {}}
"""Values with which the rest of an address is checked after a fault in one part."""


def check_tables(
    declaration: Declaration, spec: msgspec.Struct | None, faults: DeclarationFaults
) -> None:
    """Find what a run would refuse of the tables that a declaration names.

    `spec` is the spec of the job; None if it has faults.
    """
    table = declaration.table
    address = None if table is None else _check_address(table, "table", faults)
    kind = declaration.pipeline.kind
    if table is not None and kind == "archive":
        schema = _archive_schema(spec, faults)
        if _check_partitioning(table, "table", schema, faults) and address is not None:
            _check_existing(table, address, schema, faults)
    elif table is not None and kind == "rollup":
        _check_partitioning(table, "table", None, faults, is_archive=False)
    into = _into(declaration)
    if into is not None:
        _check_address(into, "compact_lake.into", faults)
        _check_partitioning(into, "compact_lake.into", None, faults)


def _into(declaration: Declaration) -> TableSpec | None:
    """The target of a compaction, also of one whose spec has faults."""
    try:
        return msgspec.convert(declaration.compact_lake.get("into"), TableSpec)
    except msgspec.ValidationError:
        return None


def _check_address(table: TableSpec, key: str, faults: DeclarationFaults) -> TableAddress | None:
    """The address; None if it has a fault. Finds a fault in each of its parts."""
    sound, tried = True, table
    for _ in _STAND_INS:
        try:
            address = tried.address()
            return address if sound else None
        except ConfigError as error:
            sound, field = False, error.field or ""
            shown = f"[{key}]" if key == "table" else key
            faults.attempt(f"{key}.{field}", shown, tried.address)
            if field not in _STAND_INS:
                return None
            is_name_of_no_catalog = field == "name" and tried.format != "iceberg"
            value = "" if is_name_of_no_catalog else _STAND_INS[field]
            tried = msgspec.structs.replace(tried, **{field: value})
    return None


def _archive_schema(spec: msgspec.Struct | None, faults: DeclarationFaults) -> pa.Schema | None:
    """The columns of the archive's table; None if they cannot be known."""
    from bascule.pipeline.jobs.archive.spec import ArchiveSpec
    from bascule.pipeline.jobs.rows import archive_schema
    from bascule.pipeline.values import ValueSpec

    if not isinstance(spec, ArchiveSpec):
        return None
    options = {name.lower(): text for name, text in spec.value.items()}
    try:
        value = ValueSpec.from_options(options).arrow_type()
    except BasculeError:
        return None  # the check of [value] has found it
    return faults.attempt("archive.raw", "archive.raw", lambda: archive_schema(value, raw=spec.raw))


def _check_partitioning(
    table: TableSpec,
    key: str,
    schema: pa.Schema | None,
    faults: DeclarationFaults,
    *,
    is_archive: bool = True,
) -> bool:
    """Find the faults of each partition field, then of all of them together.

    Without a schema the fields of an archive's values are not checked, and no column of a table of
    another kind: only Spark knows the columns of an SQL result.
    """
    from bascule.pipeline.lake.partitioning import parse_partitioning

    shown = f"{key}.partition_by"
    sound = [
        text
        for text in table.partition_by
        if faults.attempt(
            shown,
            shown,
            partial(parse_partitioning, [text], schema or _schema_for(text, is_archive=is_archive)),
        )
        is not None
    ]
    if schema is not None:
        faults.attempt(shown, shown, lambda: parse_partitioning(sound, schema))
    return len(sound) == len(table.partition_by) and shown not in faults


def _schema_for(text: str, *, is_archive: bool) -> pa.Schema:
    """A schema with the column that a partition field names. An archive has it only below its
    values."""
    import pyarrow as pa

    from bascule.pipeline.jobs.rows import archive_schema
    from bascule.pipeline.lake.partitioning import FIELD

    found = FIELD.fullmatch(text.strip())
    if found is None:
        return pa.schema([])
    kind: pa.DataType = pa.timestamp("us", tz="UTC") if found[1] else pa.string()
    first, *rest = (found[2] or found[3]).split(".")
    if is_archive and first != "value":
        return archive_schema(pa.struct([]), raw=True)
    for name in reversed(rest):
        kind = pa.struct([(name, kind)])
    return pa.schema([(first, kind)])


def _check_existing(
    table: TableSpec, address: TableAddress, schema: pa.Schema | None, faults: DeclarationFaults
) -> None:
    """Compare with the table at the address, if it exists on this machine."""
    from bascule.pipeline.jobs.tables import check_table, open_if_exists
    from bascule.pipeline.lake.storage import local_path

    if schema is None or address.catalog or not local_path(address.location):
        return
    existing = faults.attempt("table", "[table]", lambda: open_if_exists(address))
    if existing is not None:
        faults.attempt(
            "table", "[table]", lambda: check_table(existing, schema, table.partition_by)
        )
