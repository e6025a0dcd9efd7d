"""The sections of a declaration and their keys. Pure.

The docstring under a key is its documentation: `docs/pipelines/declaration.md` and the files of
`bascule pipeline new` say the same, and a test holds them together.
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
    """Keys are refused unless they are fields."""


class Pipeline(Section, frozen=True, kw_only=True):
    """[pipeline]: what runs, and how."""

    name: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN, max_length=100)]
    kind: Kind
    server: str = ""
    checkpoint: str = ""
    trigger: str = AVAILABLE_NOW
    report: str = ""
    master: str = ""
    prometheus_port: Port | None = None


class Value(Section, frozen=True, kw_only=True):
    """[value]: how the values of the stream are read into columns."""

    format: Literal["raw", "json", "msgpack", "avro", "protobuf", "arrow"] = "raw"
    schema: str = ""
    schema_file: str = ""
    descriptor_file: str = ""
    message: str = ""
    avro_confluent: bool = False
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE"


class Rollup(Section, frozen=True, kw_only=True):
    """[rollup]: an aggregate over windows, in SQL."""

    sql: str
    watermark: Watermark | None = None
    mode: Literal["append", "update"] = "append"


OptionValue: TypeAlias = str | int | float | bool | dict[str, Any]


JobKeys: TypeAlias = dict[str, Any]
"""Keys of a job's own spec, which checks them."""


class Declaration(Section, frozen=True, kw_only=True):
    """A whole file."""

    pipeline: Pipeline
    source: dict[str, OptionValue] = {}
    value: Value | None = None
    table: TableSpec | None = None
    rollup: Rollup | None = None
    sink: dict[str, OptionValue] | None = None
    archive: JobKeys = {}
    audit: JobKeys = {}
    replay: JobKeys = {}
    compact_lake: JobKeys = {}
    spark: dict[str, str | int | float | bool] = {}
