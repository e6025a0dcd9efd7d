"""Column paths, and conversion of columns to other types. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc


def type_of(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of a column or struct field; None if it does not exist."""
    first, *rest = path.split(".")
    if schema.get_field_index(first) < 0:
        return None
    kind = schema.field(first).type
    for name in rest:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def select(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Some columns of a schema, in its order and with its metadata."""
    return pa.schema([field for field in schema if field.name in names], schema.metadata)


def leaves(schema: pa.Schema) -> list[str]:
    """Paths of all columns, with the fields of structs instead of the structs."""

    def below(prefix: str, kind: pa.DataType) -> Iterator[str]:
        if pa.types.is_struct(kind):
            for child in kind:
                yield from below(f"{prefix}.{child.name}", child.type)
        else:
            yield prefix

    return [path for field in schema for path in below(field.name, field.type)]


def parquet_leaves(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """The leaf columns with their Parquet paths: `headers.list.element.key`."""

    def below(path: str, kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
        if pa.types.is_struct(kind):
            return [leaf for f in kind for leaf in below(f"{path}.{f.name}", f.type)]
        if pa.types.is_map(kind):
            return [
                *below(f"{path}.key_value.key", kind.key_type),
                *below(f"{path}.key_value.value", kind.item_type),
            ]
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return below(f"{path}.list.element", kind.value_type)
        return [(path, kind)]

    return [leaf for f in schema for leaf in below(f.name, f.type)]


def with_common_types(field: pa.Field, *, metadata: bool = False) -> pa.Field:
    """The field with Arrow's common types instead of the large types that libraries prefer."""
    kind = field.type

    def below(child: pa.Field) -> pa.Field:
        return with_common_types(child, metadata=metadata)

    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        kind = pa.binary()
    elif pa.types.is_struct(kind):
        kind = pa.struct([below(child) for child in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(below(kind.key_field), below(kind.item_field))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(below(kind.value_field))
    return pa.field(field.name, kind, field.nullable, field.metadata if metadata else None)


def stored_paths(held: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Paths of the columns to read; only the requested fields of a struct."""
    paths: list[str] = []

    def add(path: str, have: pa.DataType, want: pa.DataType) -> None:
        if not (pa.types.is_struct(have) and pa.types.is_struct(want)):
            paths.append(path)
            return
        shared = [f for f in want if have.get_field_index(f.name) >= 0]
        if not shared:
            paths.append(path)
        for f in shared:
            add(f"{path}.{f.name}", have.field(f.name).type, f.type)

    for field in wanted:
        if held.get_field_index(field.name) >= 0:
            add(field.name, held.field(field.name).type, field.type)
    if not paths:
        # A batch without columns has no row count.
        paths.append(min(held.names, key=lambda name: (name != "offset", name)))
    return paths


def with_schema(
    batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str | None] | None = None
) -> pa.RecordBatch:
    """Convert a batch to `schema`. Missing columns are null.

    `values` are those of the file's lake partition. Files of other programs in a Delta table do not
    contain the partition columns.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    arrays = []
    for field in schema:
        if batch.schema.get_field_index(field.name) < 0:
            text = (values or {}).get(field.name)
            arrays.append(pa.repeat(pa.scalar(text).cast(field.type), batch.num_rows))
        else:
            arrays.append(_as_type(batch.column(field.name), field.type))
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted):
        return array
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        children = [
            _as_type(pc.struct_field(array, f.name), f.type)
            if array.type.get_field_index(f.name) >= 0
            else pa.nulls(len(array), f.type)
            for f in wanted
        ]
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    return pc.cast(array, wanted)
