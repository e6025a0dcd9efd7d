"""Programs: structures as the compiled codec takes them."""

from __future__ import annotations

from typing import Any

from bascule.wire.codec import _hot
from bascule.wire.schema import (
    FIXED_BYTES,
    Kind,
    Structure,
    field_specs,
    item_bytes_min,
    memoize,
)


@memoize
def program_of(structure: type[Structure], version: int, flexible: bool) -> tuple[Any, ...] | None:
    """The structure as `_hot` takes it; None if it has kinds that it does not know."""
    steps: list[tuple[Any, ...]] = []
    for spec in field_specs(structure):
        if version not in spec.versions:
            steps.append((_hot.CONSTANT, spec.name, spec.default))
        elif spec.tag is not None:
            steps.append((_hot.TAGGED, spec.name, spec.default))
        elif spec.kind in FIXED_BYTES:
            steps.append((_OPERATIONS[spec.kind], spec.name))
        elif spec.kind is Kind.STRING:
            steps.append((_hot.STRING, spec.name, version in spec.nullable))
        elif spec.item is not None and spec.item.structure is not None:
            item = program_of(spec.item.structure, version, flexible)
            if item is None:
                return None
            smallest = item_bytes_min(spec.item, version, flexible)
            nullable = version in spec.nullable
            steps.append((_hot.STRUCTURES, spec.name, nullable, item, smallest))
        else:
            return None
    return structure, flexible, tuple(steps)


_OPERATIONS = {
    Kind.INT8: _hot.INT8,
    Kind.INT16: _hot.INT16,
    Kind.INT32: _hot.INT32,
    Kind.INT64: _hot.INT64,
    Kind.BOOL: _hot.BOOL,
    Kind.UUID: _hot.UUID,
}
