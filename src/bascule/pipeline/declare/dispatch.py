"""Converts a declaration to the spec of its job, and runs the job.

The job's spec defines the keys of the job's section: `[archive]` may hold the fields of
`ArchiveSpec` that the shared sections do not set. A new field of a spec needs no change here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bascule.pipeline.declare.faults import DeclarationFaults, convert
from bascule.pipeline.declare.run_facts import run_facts
from bascule.pipeline.declare.sections import Declaration, Kind
from bascule.pipeline.declare.validation import (
    retry_timeout_ms,
    source_options,
    value_options,
)
from bascule.pipeline.jobs.model import JobProgress, JobResult
from bascule.pipeline.trigger import AVAILABLE_NOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class JobModule:
    """The modules of a kind's spec and of its `run(spark, spec, progress)`."""

    section: str
    spec_module: str
    spec_name: str
    run_module: str

    def spec_class(self) -> type[msgspec.Struct]:
        found: type[msgspec.Struct] = getattr(import_module(self.spec_module), self.spec_name)
        return found


_JOBS: Final = "bascule.pipeline.jobs"
_ROLLUP: Final = "bascule.pipeline.jobs.rollup"
JOBS: Final[Mapping[Kind, JobModule]] = {
    "archive": JobModule("archive", f"{_JOBS}.archive.spec", "ArchiveSpec", f"{_JOBS}.archive.run"),
    "audit": JobModule("audit", f"{_JOBS}.audit.run", "AuditSpec", f"{_JOBS}.audit.run"),
    "replay": JobModule("replay", f"{_JOBS}.replay.spec", "ReplaySpec", f"{_JOBS}.replay.run"),
    "compact-lake": JobModule(
        "compact_lake",
        f"{_JOBS}.compact_lake.spec",
        "CompactLakeSpec",
        f"{_JOBS}.compact_lake.run",
    ),
    "rollup": JobModule("rollup", f"{_ROLLUP}.spec", "RollupSpec", f"{_ROLLUP}.run"),
}

SOURCE_KEYS: Final = {
    "stream": "stream",
    "startingOffsets": "starting_offsets",
    "failOnDataLoss": "fail_on_data_loss",
    "maxOffsetsPerTrigger": "offsets_per_trigger_max",
}
"""Source option -> field of the spec, for jobs that do not read through the Spark source."""
_PIPELINE_KEYS: Final = {
    "name": "name",
    "server": "server",
    "checkpoint": "checkpoint",
    "trigger": "trigger",
    "retry_timeout_ms": "retry_timeout",
}
"""Field of the spec -> key of [pipeline]."""
_SHARED: Final = frozenset(
    {*_PIPELINE_KEYS, "value", "source", "table", "sink", *SOURCE_KEYS.values()}
)
"""Fields of specs that the shared sections set."""
SECTIONS: Final = frozenset({"value", "source", "table", "sink"})
"""Shared sections. They become part of the spec although a key in them is at fault."""


def shared(declaration: Declaration, faults: DeclarationFaults) -> dict[str, Any]:
    """The values of the shared sections, by the field names of the specs."""
    pipeline = declaration.pipeline
    values: dict[str, Any] = {
        "name": pipeline.name,
        "server": pipeline.server,
        "trigger": pipeline.trigger,
        "value": value_options(declaration.value),
        "source": source_options(declaration),
    }
    if pipeline.checkpoint:
        values["checkpoint"] = pipeline.checkpoint
    if pipeline.retry_timeout and "pipeline.retry_timeout" not in faults:
        values["retry_timeout_ms"] = retry_timeout_ms(pipeline)
    given = {name.lower(): value for name, value in declaration.source.items()}
    for option, name in SOURCE_KEYS.items():
        if option.lower() in given:
            values[name] = given[option.lower()]
    if declaration.table is not None:
        values["table"] = msgspec.to_builtins(declaration.table)
    if declaration.sink is not None:
        values["sink"] = {name.lower(): value for name, value in declaration.sink.items()}
    return values


def spec_of(declaration: Declaration, origin: str) -> msgspec.Struct:
    """Convert a declaration to the spec of its job.

    Raises: InvalidDeclaration with `origin` and the keys.
    """
    faults = DeclarationFaults(origin)
    spec = build_spec(declaration, faults)
    faults.refuse()
    assert spec is not None, "a declaration without a spec has faults"
    return spec


def build_spec(declaration: Declaration, faults: DeclarationFaults) -> msgspec.Struct | None:
    """Convert a declaration to the spec of its job; None if there is a fault."""
    kind = declaration.pipeline.kind
    job = JOBS[kind]
    cls = job.spec_class()
    section = getattr(declaration, job.section)
    own = {} if section is None else _plain(section)
    common = shared(declaration, faults)
    known = own_keys(kind)
    fields = cls.__struct_fields__
    _find_unused(declaration, faults, fields)
    if job.section != "rollup":
        _find_other_options(declaration, faults, fields)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(cls):
        shown, given = _shown(field.name, job), common if field.name in _SHARED else own
        if shown in faults and shown not in SECTIONS:
            continue
        if field.name in given:
            values[field.name] = convert(given[field.name], field.type, faults, shown)
        elif field.required and job.section not in faults:
            faults.add(shown, f"{shown} is missing: kind {kind} needs it")
    for name in own:
        if name not in known:
            full = f"{job.section}.{name}"
            faults.add(full, f"{full} is unknown; {_near(name, job)}")
    if any(values.get(field.name) is None for field in msgspec.structs.fields(cls)
           if field.required):  # fmt: skip
        return None
    sound = {name: value for name, value in values.items() if value is not None}
    return faults.attempt(f"[{job.section}]", f"[{job.section}]", lambda: cls(**sound))


def _plain(section: Any) -> dict[str, Any]:
    found = msgspec.to_builtins(section) if isinstance(section, msgspec.Struct) else section
    return dict(found)


def _shown(name: str, job: JobModule) -> str:
    """The key of a spec's field in the file."""
    options = {field: option for option, field in SOURCE_KEYS.items()}
    if name in options:
        return f"source.{options[name]}"
    if name in _PIPELINE_KEYS:
        return f"pipeline.{_PIPELINE_KEYS[name]}"
    return name if name in _SHARED else f"{job.section}.{name}"


def own_keys(kind: Kind) -> tuple[str, ...]:
    """The keys that a kind's own section may hold."""
    return tuple(f for f in JOBS[kind].spec_class().__struct_fields__ if f not in _SHARED)


def _near(name: str, job: JobModule) -> str:
    kind = next(kind for kind, other in JOBS.items() if other is job)
    known = own_keys(kind)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {job.section}.{near[0]}?"
    return f"known are {', '.join(known) or 'none'}"


def _find_unused(
    declaration: Declaration, faults: DeclarationFaults, fields: tuple[str, ...]
) -> None:
    """Find keys that this kind does not use."""
    pipeline = declaration.pipeline
    given = {
        "checkpoint": bool(pipeline.checkpoint),
        "trigger": pipeline.trigger != AVAILABLE_NOW,
        "server": bool(pipeline.server) and "source" not in fields,
        "retry_timeout_ms": bool(pipeline.retry_timeout) and "source" not in fields,
    }
    for name, is_given in given.items():
        key = f"pipeline.{_PIPELINE_KEYS[name]}"
        if is_given and name not in fields:
            faults.add(key, f"{key} is not allowed for kind {pipeline.kind}")


def _find_other_options(
    declaration: Declaration, faults: DeclarationFaults, fields: tuple[str, ...]
) -> None:
    """Find source options that a job with its own reader does not use."""
    taken = {option.lower(): option for option, name in SOURCE_KEYS.items() if name in fields}
    for name in declaration.source:
        key = f"source.{name}"
        if name.lower() not in taken and key not in faults:
            kind = declaration.pipeline.kind
            known = ", ".join(taken.values())
            faults.add(key, f"{key} is not allowed for kind {kind}; known: {known}")


def run(
    spark: SparkSession,
    declaration: Declaration,
    origin: str,
    progress: JobProgress,
    *,
    settings: Sequence[str] = (),
) -> JobResult:
    """Run the declared job. `origin` is its file; `settings` are the keys set beside it.

    Raises: BasculeError; exceptions of Spark.
    """
    job = JOBS[declaration.pipeline.kind]
    spec = spec_of(declaration, origin)
    started = datetime.now(UTC)
    result: JobResult = import_module(job.run_module).run(spark, spec, progress)
    facts = run_facts(spark, declaration, origin, settings=settings, started=started)
    return replace(result, run=facts)
