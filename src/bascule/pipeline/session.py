"""A local Spark session for use without a cluster."""

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
    # A short run spends most of its time in JVM warm-up. The C1 compiler alone shortens it.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def local_session(
    folder: Path | None = None,
    *,
    name: str = "bascule",
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the active session (`spark-submit` provides one on a cluster), else create a local
    one.

    A local session writes only below `folder`, runs its workers with this Python, listens on the
    loopback interface only and has no web UI.
    """
    from pyspark.sql import SparkSession

    # Without this variable, Spark's workers run `python3` from PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    chosen = {"spark.app.name": name, "spark.master": master, **QUIET}
    if folder is not None:
        chosen["spark.local.dir"] = str(folder / "spark")
        chosen["spark.sql.warehouse.dir"] = str(folder / "spark" / "warehouse")
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
