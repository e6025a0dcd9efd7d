"""A Spark of this machine's own, for whoever has no cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
SHORT_LIVED: Final = {
    # A short run is mostly warm-up, which the small compiler gets over sooner.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def local_session(
    folder: Path | None = None,
    *,
    name: str = "bascule",
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session there is (on a cluster, `spark-submit`'s), else a local one.

    A local one leaves nothing outside `folder`, runs the workers with this Python, listens on
    loopback only, and has no web page.
    """
    from pyspark.sql import SparkSession

    # Spark's workers run `python3` of the PATH unless told otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    chosen = {"spark.app.name": name, "spark.master": master, **QUIET}
    if folder is not None:
        chosen["spark.local.dir"] = str(folder / "spark")
        chosen["spark.sql.warehouse.dir"] = str(folder / "spark" / "warehouse")
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
