"""Checks beyond types: sections that a kind requires or allows, options, triggers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bascule.pipeline.declare.faults import DeclarationFaults, faults_of_options
from bascule.pipeline.declare.sections import (
    Declaration,
    Kind,
    OptionValue,
    PipelineSection,
    ValueSection,
)
from bascule.pipeline.option_parsing import ms_of
from bascule.pipeline.retries import RETRY_TIMEOUT_MS
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


def check(declaration: Declaration, faults: DeclarationFaults) -> None:
    """Find the faults of a declaration beyond its types and the spec of its job."""
    kind = declaration.pipeline.kind
    needs = KIND_SECTIONS[kind]
    for key in needs.required:
        if not _has(declaration, key) and key not in faults:
            shown = key if "." in key else f"[{key}]"
            faults.add(key, f"{shown} is missing: kind {kind} needs it")
    taken = {*EVERY_KIND, *needs.required, *needs.allowed}
    for name in declaration.__struct_fields__:
        if name not in taken and _has(declaration, name):
            faults.add(name, f"[{name}] is not allowed for kind {kind}")
    trigger = declaration.pipeline.trigger
    faults.attempt("pipeline.trigger", "pipeline.trigger", lambda: trigger_ms(trigger))
    faults.attempt(
        "pipeline.retry_timeout",
        "pipeline.retry_timeout",
        lambda: retry_timeout_ms(declaration.pipeline),
    )
    value_is_sound = _check_value(declaration, faults)
    if declaration.source:
        _check_source(declaration, faults, value_is_sound=value_is_sound)
    if declaration.sink:
        _check_sink(declaration, faults)


def _has(declaration: Declaration, key: str) -> bool:
    found: object = declaration
    for name in key.split("."):
        found = getattr(found, name)
    return found is not None and found not in ({}, "")


def option_text(value: OptionValue) -> str:
    """Convert a TOML value to the text of a Spark option."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def retry_timeout_ms(pipeline: PipelineSection) -> int:
    """Raises: ConfigError."""
    given = {"retry_timeout": pipeline.retry_timeout} if pipeline.retry_timeout else {}
    return ms_of("retry_timeout", given, RETRY_TIMEOUT_MS)


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
    pipeline = declaration.pipeline
    given = {"server": pipeline.server, "retryTimeout": pipeline.retry_timeout}
    return {
        **{name: text for name, text in given.items() if text},
        **options_of(declaration.source),
        **value_options(declaration.value),
    }


ELSEWHERE: Final = {
    "server": "pipeline.server",
    "retrytimeout": "pipeline.retry_timeout",
    "mode": "[value]",
}
"""Source options that have their own keys."""
SELECTIONS: Final = frozenset({"stream", "streams", "streampattern"})
NEEDED_BY_OTHERS: Final = SELECTIONS | {"view", "archive", "includeheaders"}
"""Source options without which another one may be refused; lower case."""


def _check_source(
    declaration: Declaration, faults: DeclarationFaults, *, value_is_sound: bool
) -> None:
    from bascule.pipeline.source.options import SourceOptions

    own = {}
    for name, value in declaration.source.items():
        if name.lower().startswith("value") or name.lower() in ELSEWHERE:
            section = ELSEWHERE.get(name.lower(), "[value]")
            faults.add(f"source.{name}", f"source.{name} belongs in {section}")
        elif f"source.{name}" not in faults:
            own[name] = option_text(value)
    values = value_options(declaration.value) if value_is_sound else {}
    if declaration.pipeline.kind != "rollup":
        return  # the spec of the job checks them
    base = {name: text for name, text in own.items() if name.lower() in NEEDED_BY_OTHERS}
    if not {name.lower() for name in base} & SELECTIONS:
        base["stream"] = "stream"
    for text in faults_of_options(
        lambda options: SourceOptions.parse({**values, **options}).for_stream(), own, base=base
    ):
        faults.add("source", f"[source]: {text}")


def _check_sink(declaration: Declaration, faults: DeclarationFaults) -> None:
    from bascule.pipeline.sink.options import SinkOptions

    sink = {n: v for n, v in (declaration.sink or {}).items() if f"sink.{n}" not in faults}
    options = options_of(sink)
    if declaration.pipeline.kind != "rollup":
        return  # the spec of the job checks them
    base = {name: text for name, text in options.items() if name.lower() == "stream"}
    is_stream = declaration.rollup is None or declaration.rollup.mode == "append"

    def parse(options: dict[str, str]) -> None:
        parsed = SinkOptions.parse(options)
        if is_stream:
            parsed.for_stream()

    for text in faults_of_options(parse, options, base=base):
        faults.add("sink", f"[sink]: {text}")


def _check_value(declaration: Declaration, faults: DeclarationFaults) -> bool:
    options = {name.lower(): text for name, text in value_options(declaration.value).items()}
    if not options:
        return True
    from bascule.pipeline.values import ValueSpec

    spec = faults.attempt("value", "[value]", lambda: ValueSpec.from_options(options))
    return spec is not None and faults.attempt("value", "[value]", spec.decoder) is not None
