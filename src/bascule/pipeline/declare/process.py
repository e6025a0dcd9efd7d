"""A pipeline in a process of its own, or as the application of `spark-submit`.

    python -m bascule.pipeline.declare FILE [--set key=value]... [--report FILE] [--events] [--tied]

Without `--events` its last line is the result as JSON, and its events go to standard error, which
`spark-submit` puts into standard output. It ends with 0, 1 for a failure, 2 for a wrong
declaration, 6 where the job did its work and found a fault, 130 where it was interrupted, by
SIGINT or SIGTERM, which end the query in order.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError, ConfigError, MissingExtra
from bascule.pipeline.declare import dispatch
from bascule.pipeline.declare.events import Events, failure_of
from bascule.pipeline.declare.loader import load
from bascule.pipeline.declare.sections import Declaration
from bascule.pipeline.declare.validation import option_text
from bascule.pipeline.jobs.model import JobResult, Series

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.pipeline.listener import LagListener

OK: Final = 0
FAILED: Final = 1
WRONG: Final = 2
FAULTS: Final = 6
INTERRUPTED: Final = 130
"""Exit codes, the same as the command line's."""

STOP_SECONDS_MAX: Final = 30.0
TELL_SECONDS: Final = 1.0
LISTENER_SECONDS_MAX: Final = 2.0


def main(arguments: list[str] | None = None) -> int:
    """Run one declaration; returns the exit code."""
    chosen = _parse(arguments)
    events = Events(_write if chosen.events else _write_news)
    signal.signal(signal.SIGTERM, _interrupt)
    if chosen.tied:
        _end_with_starter()
    try:
        declaration = load(chosen.file, environment=os.environ, settings=chosen.set)
        result = run(declaration, str(chosen.file), events, report=chosen.report)
    except ConfigError as error:
        return _failed(events, error, WRONG)
    except BasculeError as error:
        return _failed(events, error, FAILED)
    except KeyboardInterrupt:
        events.tell("interrupted")
        return INTERRUPTED
    if not chosen.events:
        _print_result(result)
    if result.summary.get("interrupted"):
        return INTERRUPTED
    return OK if result.ok else FAULTS


def run(
    declaration: Declaration, origin: str, events: Events, *, report: Path | None = None
) -> JobResult:
    """Start Spark, run the job, write the report, stop Spark.

    An interrupted job has a result as well: what its queries had told so far.

    Raises: BasculeError; KeyboardInterrupt where nothing had begun.
    """
    spark_error, java_error = _spark_errors()
    with tempfile.TemporaryDirectory(prefix="bascule-spark-", ignore_cleanup_errors=True) as folder:
        spark = session_of(declaration, Path(folder))
        try:
            result = _watched(spark, declaration, origin, events)
        except (spark_error, java_error) as error:
            name, text = failure_of(error)
            events.tell("failed", error=name, text=text)
            raise _Told(text) from error
        finally:
            _stop(spark)
    events.result(result)
    path = report or (Path(declaration.pipeline.report) if declaration.pipeline.report else None)
    if path is not None:
        from bascule.pipeline.report import write_report

        write_report(result, path)
        events.tell("report", path=str(path))
    return result


class _Told(BasculeError):
    """The failure was told already."""


def session_of(declaration: Declaration, folder: Path) -> SparkSession:
    """The cluster's session under `spark-submit`, else a local one that leaves nothing behind."""
    from bascule.pipeline.session import SHORT_LIVED, local_session

    settings = {name: option_text(value) for name, value in declaration.spark.items()}
    name = declaration.pipeline.name
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark.sql import SparkSession

        builder: SparkSession.Builder = SparkSession.builder
        builder = builder.config("spark.sql.session.timeZone", "UTC").appName(name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    master = declaration.pipeline.master or "local[*]"
    short = SHORT_LIVED if declaration.pipeline.trigger == "available-now" else {}
    return local_session(folder, name=name, master=master, settings={**short, **settings})


def _watched(
    spark: SparkSession, declaration: Declaration, origin: str, events: Events
) -> JobResult:
    from bascule.pipeline.declare.signal_stopper import Stopper
    from bascule.pipeline.listener import watch

    listener = watch(spark, prometheus_port=declaration.pipeline.prometheus_port)
    events.tell("started", spark=spark.version, prometheus=listener.port)
    ended = threading.Event()
    teller = threading.Thread(target=_tell_lag, args=(listener, events, ended), daemon=True)
    teller.start()
    stopper = Stopper(spark)
    try:
        result = dispatch.run(spark, declaration, origin, events)
    except (BasculeError, *_spark_errors()):
        if not stopper.asked:
            raise
        return _so_far(declaration, listener)
    else:
        result = replace(result, series=_with_lines(result, listener))
    finally:
        stopper.close()
        ended.set()
        teller.join()
        listener.close()
    if stopper.asked:
        return replace(result, summary={"interrupted": True, **result.summary})
    return result


def _with_lines(result: JobResult, listener: LagListener) -> tuple[Series, ...]:
    """The job's lines, and of lag and micro-batches where it has none of its own.

    Not of rows: what a query of the archive hands to Spark is a row for each file.
    """
    from bascule.pipeline.query_report import series_of

    for _ in range(round(LISTENER_SECONDS_MAX / 0.1)):  # Spark tells its listeners in time
        if not any(state.active for state in listener.queries()):
            break
        threading.Event().wait(0.1)
    named = {line.title for line in result.series} | {"Throughput", "Late rows"}
    states = listener.queries()
    found = series_of(states[0]) if states else ()
    return (*result.series, *(line for line in found if line.title not in named))


def _so_far(declaration: Declaration, listener: LagListener) -> JobResult:
    """The result of a job that was interrupted, from what its queries told."""
    from bascule.pipeline.query_report import series_of, table_of

    states = listener.queries()
    if not states:
        raise KeyboardInterrupt
    return JobResult(
        kind=declaration.pipeline.kind,
        name=declaration.pipeline.name,
        ok=True,
        summary={
            "interrupted": True,
            "rows": sum(state.rows for state in states),
            "late_rows": sum(state.late_rows for state in states),
            "batches": sum(state.batches for state in states),
            "lag": sum(state.lag for state in states),
        },
        tables=table_of(states),
        series=series_of(states[0]),
    )


def _tell_lag(listener: LagListener, events: Events, ended: threading.Event) -> None:
    """Once a second while a query runs: what there is to show beside the progress."""
    while not ended.wait(TELL_SECONDS):
        active = [state for state in listener.queries() if state.active and state.latest]
        if active:
            events.tell(
                "lag",
                rows=sum(state.rows for state in active),
                rows_per_s=sum(s.latest.rows_per_s for s in active if s.latest),
                lag=sum(state.lag for state in active),
                late_rows=sum(state.late_rows for state in active),
            )


def _stop(spark: SparkSession) -> None:
    """End Java too; a Java that is gone already is no failure."""
    _, java_error = _spark_errors()
    try:
        spark.stop()
    except (java_error, OSError):
        pass


def _spark_errors() -> tuple[type[Exception], type[Exception]]:
    """What Spark raises, in Python and through the gateway. Raises: MissingExtra."""
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
    except ImportError as error:
        raise MissingExtra("a pipeline", "pyspark", "pipelines") from error
    return PySparkException, Py4JError


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bascule.pipeline.declare")
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--events", action="store_true", help="tell events on standard output")
    parser.add_argument("--tied", action="store_true", help="end when standard input ends")
    return parser.parse_args(arguments)


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _write_news(line: str) -> None:
    """For people who read the log of `spark-submit`."""
    if '"event": "result"' not in line:
        sys.stderr.write(line)
        sys.stderr.flush()


def _print_result(result: JobResult) -> None:
    import json

    import msgspec

    sys.stdout.write(json.dumps(msgspec.to_builtins(result), default=str) + "\n")


def _failed(events: Events, error: BasculeError, code: int) -> int:
    if not isinstance(error, _Told):
        name, text = failure_of(error)
        events.tell("failed", error=name, text=text)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_with_starter() -> None:
    """When standard input ends, whoever started this is gone, perhaps by kill -9: end in order.

    Java ends when this process does: its standard input is a pipe from here.
    """

    def watch() -> None:
        while os.read(0, 4_096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(STOP_SECONDS_MAX)
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()
