"""The sections of a declaration and their keys. Pure.

`docs/pipelines/declaration.md` and the files of `bascule pipeline new` document the keys. A test
compares them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from bascule.pipeline.jobs.rollup.spec import Watermark
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.trigger import AVAILABLE_NOW

Kind: TypeAlias = Literal["archive", "replay", "audit", "rollup", "compact-lake"]
KINDS: Final[tuple[Kind, ...]] = ("archive", "replay", "audit", "rollup", "compact-lake")

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys that are not fields are refused."""


class PipelineSection(Section, frozen=True, kw_only=True):
    """[pipeline]: the job and how it runs."""

    name: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN, max_length=100)]
    kind: Kind
    server: str = ""
    checkpoint: str = ""
    trigger: str = AVAILABLE_NOW
    retry_timeout: str = ""
    report: str = ""
    master: str = ""
    prometheus_port: Port | None = None


class ValueSection(Section, frozen=True, kw_only=True):
    """[value]: how values are decoded into columns."""

    format: Literal["raw", "json", "msgpack", "avro", "protobuf", "arrow"] = "raw"
    schema: str = ""
    schema_file: str = ""
    descriptor_file: str = ""
    message: str = ""
    avro_confluent: bool = False
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE"


class RollupSection(Section, frozen=True, kw_only=True):
    """[rollup]: an aggregate over windows, in SQL."""

    sql: str
    watermark: Watermark | None = None
    mode: Literal["append", "update"] = "append"


OptionValue: TypeAlias = str | int | float | bool | dict[str, Any]


JobKeys: TypeAlias = dict[str, Any]
"""Keys of the job's own section. The job's spec checks them."""


class Declaration(Section, frozen=True, kw_only=True):
    """A whole file."""

    pipeline: PipelineSection
    source: dict[str, OptionValue] = {}
    value: ValueSection | None = None
    table: TableSpec | None = None
    rollup: RollupSection | None = None
    sink: dict[str, OptionValue] | None = None
    archive: JobKeys = {}
    audit: JobKeys = {}
    replay: JobKeys = {}
    compact_lake: JobKeys = {}
    spark: dict[str, str | int | float | bool] = {}
