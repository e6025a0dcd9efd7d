"""Column paths, and conversion to Arrow's common types. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


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
