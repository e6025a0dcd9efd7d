"""Checks beyond types: sections that a kind requires or allows, options, triggers. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bascule.errors import BasculeError, ConfigError
from bascule.pipeline.declare.sections import (
    Declaration,
    Kind,
    OptionValue,
    ValueSection,
)
from bascule.pipeline.trigger import trigger_ms


@dataclass(frozen=True, slots=True)
class KindSections:
    """Sections and keys that a kind requires, and sections that it allows."""

    required: tuple[str, ...]
    allowed: tuple[str, ...] = ()


KIND_SECTIONS: Final[Mapping[Kind, KindSections]] = {
    "archive": KindSections(("source", "table"), ("value", "archive")),
    "audit": KindSections(("source", "table"), ("value", "audit")),
    "replay": KindSections(("table", "replay"), ("value",)),
    "rollup": KindSections(("source", "rollup", "pipeline.checkpoint"), ("value", "table", "sink")),
    "compact-lake": KindSections(("table", "compact_lake")),
}
EVERY_KIND: Final = ("pipeline", "spark")


def check(declaration: Declaration, origin: str) -> None:
    """Check a declaration. Raises: ConfigError with `origin` and the key."""
    kind = declaration.pipeline.kind
    needs = KIND_SECTIONS[kind]
    for key in needs.required:
        if not _has(declaration, key):
            shown = key if "." in key else f"[{key}]"
            raise ConfigError(f"{origin}:{shown} is missing: kind {kind} needs it")
    taken = {*EVERY_KIND, *needs.required, *needs.allowed}
    for name in declaration.__struct_fields__:
        if name not in taken and _has(declaration, name):
            raise ConfigError(f"{origin}:[{name}] is not allowed for kind {kind}")
    _at(origin, "pipeline.trigger", lambda: trigger_ms(declaration.pipeline.trigger))
    _check_table(declaration, origin)
    _check_value(declaration, origin)
    if declaration.source:
        _check_source(declaration, origin)
    if declaration.sink:
        _check_sink(declaration.sink, origin)


def _has(declaration: Declaration, key: str) -> bool:
    found: object = declaration
    for name in key.split("."):
        found = getattr(found, name)
    return found is not None and found not in ({}, "")


def _at(origin: str, key: str, attempt: Callable[[], object]) -> None:
    """Call `attempt`. Raises: ConfigError with the origin and key before the text of what it
    raised."""
    try:
        attempt()
    except BasculeError as error:
        raise ConfigError(f"{origin}:{key}: {error}") from error


def option_text(value: OptionValue) -> str:
    """Convert a TOML value to the text of a Spark option."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def options_of(section: Mapping[str, OptionValue]) -> dict[str, str]:
    return {name: option_text(value) for name, value in section.items()}


def value_options(value: ValueSection | None) -> dict[str, str]:
    """The source options that describe how values are decoded; empty for raw values."""
    if value is None or value.format == "raw":
        return {}
    found = {
        "valueFormat": value.format,
        "valueSchema": value.schema,
        "valueSchemaFile": value.schema_file,
        "valueDescriptorFile": value.descriptor_file,
        "valueMessage": value.message,
        "avroConfluent": "true" if value.avro_confluent else "",
        "mode": value.mode,
    }
    return {name: text for name, text in found.items() if text}


def source_options(declaration: Declaration) -> dict[str, str]:
    """All options of `format("bascule")` for this declaration."""
    server = declaration.pipeline.server
    return {
        **({"server": server} if server else {}),
        **options_of(declaration.source),
        **value_options(declaration.value),
    }


def _check_source(declaration: Declaration, origin: str) -> None:
    from bascule.pipeline.source.options import SourceOptions

    for name in declaration.source:
        if name.lower().startswith("value") or name.lower() in ("mode", "server"):
            section = "pipeline.server" if name.lower() == "server" else "[value]"
            raise ConfigError(f"{origin}:source.{name} belongs in {section}")
    options = source_options(declaration)
    _at(origin, "[source]", lambda: SourceOptions.parse(options).for_stream())


def _check_sink(sink: Mapping[str, OptionValue], origin: str) -> None:
    from bascule.pipeline.sink.options import SinkOptions

    _at(origin, "[sink]", lambda: SinkOptions.parse(options_of(sink)))


def _check_value(declaration: Declaration, origin: str) -> None:
    options = {name.lower(): text for name, text in value_options(declaration.value).items()}
    if options:
        from bascule.pipeline.values import ValueSpec

        _at(origin, "[value]", lambda: ValueSpec.from_options(options))


def _check_table(declaration: Declaration, origin: str) -> None:
    table = declaration.table
    if table is not None:
        _at(origin, "[table]", table.address)
