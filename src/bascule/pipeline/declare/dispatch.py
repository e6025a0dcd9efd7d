"""Converts a declaration to the spec of its job, and runs the job.

The job's spec defines the keys of the job's section: `[archive]` may hold the fields of
`ArchiveSpec` that the shared sections do not set. A new field of a spec needs no change here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bascule.errors import BasculeError, ConfigError
from bascule.pipeline.declare.sections import Declaration, Kind
from bascule.pipeline.declare.validation import source_options, value_options
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


def shared(declaration: Declaration) -> dict[str, Any]:
    """The values of the shared sections, by the field names of the specs."""
    pipeline = declaration.pipeline
    values: dict[str, Any] = {
        "name": pipeline.name,
        "server": pipeline.server,
        "checkpoint": pipeline.checkpoint or None,
        "trigger": pipeline.trigger,
        "value": value_options(declaration.value),
        "source": source_options(declaration),
    }
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

    Raises: ConfigError with `origin` and the key.
    """
    kind = declaration.pipeline.kind
    job = JOBS[kind]
    cls = job.spec_class()
    section = getattr(declaration, job.section)
    own = msgspec.to_builtins(section) if isinstance(section, msgspec.Struct) else dict(section)
    common = shared(declaration)
    fields = cls.__struct_fields__
    for name in own:
        if name not in fields or name in common:
            raise ConfigError(f"{origin}:{job.section}.{name} is unknown; {_near(name, job)}")
    _refuse_unused(declaration, origin, fields)
    if job.section != "rollup":
        _refuse_other_options(declaration, origin, fields)
    merged = {name: value for name, value in common.items() if name in fields} | own
    try:
        return msgspec.convert(merged, cls)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", f"`{job.section}.").replace("`", "")
        raise ConfigError(f"{origin}:[{job.section}]: {text[:1].lower()}{text[1:]}") from None
    except BasculeError as error:
        raise ConfigError(f"{origin}:[{job.section}]: {error}") from error


def own_keys(kind: Kind) -> tuple[str, ...]:
    """The keys that a kind's own section may hold."""
    told = {"name", "server", "checkpoint", "trigger", "value", "source", "table", "sink"}
    told |= set(SOURCE_KEYS.values())
    return tuple(f for f in JOBS[kind].spec_class().__struct_fields__ if f not in told)


def _near(name: str, job: JobModule) -> str:
    kind = next(kind for kind, other in JOBS.items() if other is job)
    known = own_keys(kind)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {job.section}.{near[0]}?"
    return f"known are {', '.join(known) or 'none'}"


def _refuse_unused(declaration: Declaration, origin: str, fields: tuple[str, ...]) -> None:
    """Refuse keys that this kind does not use. Raises: ConfigError."""
    pipeline = declaration.pipeline
    given = {
        "checkpoint": bool(pipeline.checkpoint),
        "trigger": pipeline.trigger != AVAILABLE_NOW,
        "server": bool(pipeline.server) and "source" not in fields,
    }
    for name, is_given in given.items():
        if is_given and name not in fields:
            raise ConfigError(f"{origin}:pipeline.{name} is not allowed for kind {pipeline.kind}")


def _refuse_other_options(declaration: Declaration, origin: str, fields: tuple[str, ...]) -> None:
    """Refuse source options that a job with its own reader does not use. Raises: ConfigError."""
    taken = {option.lower() for option, name in SOURCE_KEYS.items() if name in fields}
    for name in declaration.source:
        if name.lower() not in taken:
            kind = declaration.pipeline.kind
            known = ", ".join(option for option in SOURCE_KEYS if option.lower() in taken)
            raise ConfigError(
                f"{origin}:source.{name} is not allowed for kind {kind}; known: {known}"
            )


def run(
    spark: SparkSession, declaration: Declaration, origin: str, progress: JobProgress
) -> JobResult:
    """Run the declared job.

    Raises: BasculeError; exceptions of Spark.
    """
    job = JOBS[declaration.pipeline.kind]
    spec = spec_of(declaration, origin)
    result: JobResult = import_module(job.run_module).run(spark, spec, progress)
    return result
