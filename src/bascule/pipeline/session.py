"""Spark sessions: a local one for use without a cluster, the data sources of one, the active one of
a thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bascule.pipeline.spark_version import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # A worker that does not reach the JVM in time ends its query. Spark's 15 s are too short for a
    # machine whose processors others use as well.
    "spark.python.authenticate.socketTimeout": "60s",
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
    require_spark()
    from pyspark.sql import SparkSession

    # Without this variable, Spark's workers run `python3` from PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    chosen = {"spark.app.name": name, "spark.master": master, **LOCAL}
    if folder is not None:
        chosen["spark.local.dir"] = str(folder / "spark")
        chosen["spark.sql.warehouse.dir"] = str(folder / "spark" / "warehouse")
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def register(spark: SparkSession, *sources: type[DataSource]) -> None:
    """Register data sources in a session. A source that the session knows already is kept.

    A new session of a Spark application inherits what others registered and refuses to register it
    again.
    """
    from pyspark.errors import AnalysisException

    for source in sources:
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make `spark` the active session of this thread, and then the previous one again.

    Spark 4.3 looks up a Python data source that is written to (`start()` of a stream, `save()`) in
    the active session of the calling thread, and not in the session of the frame. Only the thread
    that created the session has an active one. In others the lookup ends in DATA_SOURCE_NOT_FOUND.
    """
    # PySpark has no public name for it. `createDataFrame` makes the same call.
    sessions = type(spark)._get_j_spark_session_class(spark._jvm)  # noqa: SLF001
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
