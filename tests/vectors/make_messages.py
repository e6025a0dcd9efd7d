"""Write messages.jsonl: every message in every version, encoded by others. See README.md.

.venv/bin/python tests/vectors/make_messages.py
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version as installed
from itertools import count
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from bascule.wire.messages.api_versions import ApiVersionsResponse  # noqa: E402
from bascule.wire.schema import (  # noqa: E402
    FIXED_BYTES,
    FieldSpec,
    Kind,
    Structure,
    field_specs,
)
from support.foreign_messages import (  # noqa: E402
    RENAMED,
    cases,
    is_known_to_kafka_python,
    kafka_python_again,
    kafka_python_bytes,
    kio_again,
    our_bytes,
)

TEXTS = ("flights", "", "vols-\u00e9t\u00e9", "x" * 130)
"""130 bytes: a compact length of two bytes."""


class Sampler:
    """Values that differ from field to field, so that a swapped pair shows."""

    def __init__(self, version: int, *, full: bool) -> None:
        self._version = version
        self._full = full
        self._numbers = count(1)

    def structure(self, kind: type[Structure]) -> Any:
        return kind(**{s.name: self._field(s) for s in field_specs(kind)})

    def _field(self, spec: FieldSpec) -> Any:
        if self._version not in spec.versions or spec.name in RENAMED:
            return spec.default
        if not self._full and (spec.tag is not None or self._version in spec.nullable):
            return spec.default if spec.tag is not None else None
        if spec.item is not None:
            items = range(2 if self._full else 1)
            return [self._item(spec.item.kind, spec.item.structure) for _ in items]
        if spec.name == "error_code":
            return next(self._numbers) % 80  # kio knows codes only
        if spec.name.endswith("time_ms") and spec.kind is Kind.INT64:
            return 1_700_000_000_000 + next(self._numbers)  # and takes times apart
        return self._item(spec.kind, spec.structure)

    def _item(self, kind: Kind, structure: type[Structure] | None) -> Any:
        if structure is not None:
            return self.structure(structure)
        number = next(self._numbers)
        if kind is Kind.BOOL:
            return number % 2 == 1
        if kind is Kind.UUID:
            return bytes((number + i) % 256 for i in range(16))
        if kind in FIXED_BYTES:
            top = 1 << (8 * FIXED_BYTES[kind] - 1)
            value = (number * 0x0123456789ABCD) % top
            return -value if number % 5 == 0 else value
        if kind is Kind.BYTES:
            return bytes(range(number % 200))
        return TEXTS[number % len(TEXTS)]


def to_json(value: Any) -> Any:
    if isinstance(value, Structure):
        return {s.name: to_json(getattr(value, s.name)) for s in field_specs(type(value))}
    if isinstance(value, bytes):
        return value.hex()
    return [to_json(v) for v in value] if isinstance(value, (list, tuple)) else value


def main() -> None:
    kafka_python = f"kafka-python {installed('kafka-python')}"
    kio = f"kio {installed('kio')}"
    lines = []
    for kind, version in cases():
        for full in (True, False):
            message = Sampler(version, full=full).structure(kind)
            if isinstance(message, ApiVersionsResponse):
                message.error_code = 0
            agreed = []
            if is_known_to_kafka_python(kind):
                data = kafka_python_bytes(message, version)
                assert kafka_python_again(kind, version, data) == data
                agreed.append(kafka_python)
            else:
                data = our_bytes(message, version)
            if (again := _kio(kind, version, data)) is not None:
                assert again == data, f"{kio} disagrees on {kind.__name__} version {version}"
                agreed.append(kio)
            assert agreed, f"no codec has {kind.__name__} version {version}"
            lines.append(
                json.dumps(
                    {
                        "message": kind.__name__,
                        "version": version,
                        "agreed": agreed,
                        "value": to_json(message),
                        "bytes": data.hex(),
                    }
                )
            )
    (HERE / "messages.jsonl").write_text("\n".join(lines) + "\n")


def _kio(kind: Any, version: int, data: bytes) -> bytes | None:
    """None as well where kio turns a number down that stands for no error or no time it knows."""
    try:
        return kio_again(kind, version, data)
    except (ValueError, OverflowError):
        return None


if __name__ == "__main__":
    main()
