"""Found by Spark itself: any importable `pyspark_*` package with a `DefaultSource` is a source.

So `spark.read.format("bascule")` works without registration where Bascule is installed.
"""

from bascule.pipeline.source import BasculeDataSource as DefaultSource

__all__ = ["DefaultSource"]
