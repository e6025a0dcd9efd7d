"""The data source `bascule` on a Spark that is too old: every use of it says which Spark is needed.

It uses only what Spark 4.0 has.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource

from bascule.pipeline.spark_version import require_spark


class UnsupportedDataSource(DataSource):
    """Spark shows the error of the constructor to the user."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        require_spark()

    @classmethod
    def name(cls) -> str:
        return "bascule"
