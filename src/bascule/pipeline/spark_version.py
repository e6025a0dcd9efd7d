"""The Spark that this package needs, and what it says to another one.

The source limits what a micro-batch reads (`pyspark.sql.streaming.datasource`). Spark 4.1 has no
such module. There the import of `pyspark_bascule` would fail. Spark would only log it, skip the
Python data sources of all packages and end in DATA_SOURCE_NOT_FOUND.
"""

from __future__ import annotations

import re
from typing import Final

from bascule.errors import MissingExtra, UnsupportedSpark

SPARK_MIN: Final = (4, 3)
"""The oldest Spark that the tests run on."""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


def require_spark() -> None:
    """Raises: UnsupportedSpark for a Spark that is too old; MissingExtra without one."""
    try:
        import pyspark
    except ImportError as error:
        raise MissingExtra("reading and writing with Spark", "pyspark", "spark") from error
    found = str(pyspark.__version__)
    numbers = _VERSION.match(found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < SPARK_MIN:
        raise UnsupportedSpark(found, "{}.{}".format(*SPARK_MIN))
