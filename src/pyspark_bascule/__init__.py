"""Found by Spark itself: any importable `pyspark_*` package with a `DefaultSource` is a source.

So `spark.read.format("bascule")` works without registration where Bascule is installed. A Spark
that is too old gets a source that says so. If this import failed, Spark would skip the Python data
sources of every package.
"""

from typing import TYPE_CHECKING

from bascule.errors import UnsupportedSpark
from bascule.pipeline.spark_version import require_spark

__all__ = ["DefaultSource"]

if TYPE_CHECKING:
    from bascule.pipeline.source import BasculeDataSource as DefaultSource
else:
    try:
        require_spark()
    except UnsupportedSpark:
        from pyspark_bascule.unsupported_source import UnsupportedDataSource as DefaultSource
    else:
        from bascule.pipeline.source import BasculeDataSource as DefaultSource
