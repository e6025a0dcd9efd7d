"""Functions for the definition file of a project: one sink, and the flow into it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import pipelines as dp

from bascule.pipeline.declare.dispatch import spec_of
from bascule.pipeline.declare.loader import load
from bascule.pipeline.sdp.project import check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bascule.pipeline.jobs.archive.spec import ArchiveSpec
    from bascule.pipeline.jobs.rollup.spec import RollupSpec


def define(spark: SparkSession, file: str, settings: Sequence[str] = ()) -> None:
    """Define the flow of the declaration in `file`.

    Raises: ConfigError.
    """
    from bascule.pipeline.jobs.archive.spec import ArchiveSpec
    from bascule.pipeline.jobs.rollup.spec import RollupSpec

    declaration = load(Path(file), environment=os.environ, settings=settings)
    check(declaration)
    spec = spec_of(declaration, file)
    if isinstance(spec, RollupSpec):
        _define_rollup(spark, spec)
    elif isinstance(spec, ArchiveSpec):
        _define_archive(spark, spec)


def _define_rollup(spark: SparkSession, spec: RollupSpec) -> None:
    from bascule.pipeline.jobs.rollup.run import register, rollup_frame, sink_of

    register(spark, spec)
    format, options = sink_of(spec)
    name = _identifier(spec.name)
    dp.create_sink(name, format, options)

    @dp.append_flow(target=name, name=f"{name}_flow")
    def flow() -> DataFrame:
        return rollup_frame(spark, spec)


def _define_archive(spark: SparkSession, spec: ArchiveSpec) -> None:
    from bascule.pipeline.jobs.archive.data_source import FORMAT, ArchiveDataSource, spec_option
    from bascule.pipeline.session import register as register_in

    register_in(spark, ArchiveDataSource)
    options = spec_option(spec)
    name = _identifier(spec.name)
    dp.create_sink(name, FORMAT, options)

    @dp.append_flow(target=name, name=f"{name}_flow")
    def flow() -> DataFrame:
        return spark.readStream.format(FORMAT).options(**options).load()


def _identifier(name: str) -> str:
    """The pipeline's name as an SQL identifier without quotes."""
    return "".join(c if c.isalnum() else "_" for c in name)
