"""Runs a pipeline in its own process, or as the application of `spark-submit`.

    python -m bascule.pipeline.declare FILE [--set key=value]... [--report FILE] [--events] [--tied]

With `--events` it writes events to standard output. Without it, the last line of standard output is
the result as JSON, and events go to standard error. Exit codes: 0 success, 1 failure, 2 invalid
declaration, 6 the job found a fault, 130 interrupted. SIGINT and SIGTERM stop the query in order.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError, ConfigError, MissingExtra
from bascule.pipeline.declare import dispatch
from bascule.pipeline.declare.events import EventWriter, failure_of
from bascule.pipeline.declare.loader import load
from bascule.pipeline.declare.run_facts import run_facts
from bascule.pipeline.declare.sections import Declaration
from bascule.pipeline.declare.validation import option_text
from bascule.pipeline.jobs.model import JobResult, Series
from bascule.pipeline.spark_version import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.pipeline.listener import LagListener

OK: Final = 0
FAILED: Final = 1
WRONG: Final = 2
FAULTS: Final = 6
INTERRUPTED: Final = 130
"""Exit codes, equal to those of the command line."""

STOP_SECONDS_MAX: Final = 30.0
TELL_SECONDS: Final = 1.0
LISTENER_SECONDS_MAX: Final = 2.0


def main(arguments: list[str] | None = None) -> int:
    """Run one declaration. Return the exit code."""
    chosen = _parse(arguments)
    events = EventWriter(_write if chosen.events else _write_news)
    signal.signal(signal.SIGTERM, _interrupt)
    if chosen.tied:
        _end_with_starter()
    try:
        declaration = load(chosen.file, environment=os.environ, settings=chosen.set)
        result = run(
            declaration, str(chosen.file), events, report=chosen.report, settings=chosen.set
        )
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
    declaration: Declaration,
    origin: str,
    events: EventWriter,
    *,
    report: Path | None = None,
    settings: Sequence[str] = (),
) -> JobResult:
    """Start Spark, run the job, write the report, stop Spark.

    An interrupted job also has a result: what its queries reported before.

    Raises: BasculeError; KeyboardInterrupt if no query had reported.
    """
    spark_error, java_error = _spark_errors()
    require_spark()
    with tempfile.TemporaryDirectory(prefix="bascule-spark-", ignore_cleanup_errors=True) as folder:
        spark = session_of(declaration, Path(folder))
        try:
            result = _watched(spark, declaration, origin, events, settings)
        except (spark_error, java_error) as error:
            name, text = failure_of(error)
            events.tell("failed", error=name, text=text)
            raise _Reported(text) from error
        finally:
            _stop(spark)
    events.result(result)
    path = report or (Path(declaration.pipeline.report) if declaration.pipeline.report else None)
    if path is not None:
        from bascule.pipeline.report import write_report

        write_report(result, path)
        events.tell("report", path=str(path))
    return result


class _Reported(BasculeError):
    """A failure that was already reported as an event."""


def session_of(declaration: Declaration, folder: Path) -> SparkSession:
    """Return the cluster's session under `spark-submit`, else a local one that leaves no files."""
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
    spark: SparkSession,
    declaration: Declaration,
    origin: str,
    events: EventWriter,
    settings: Sequence[str],
) -> JobResult:
    from bascule.pipeline.declare.interruption import Interruption
    from bascule.pipeline.listener import watch

    started = datetime.now(UTC)
    listener = watch(spark, prometheus_port=declaration.pipeline.prometheus_port)
    events.tell("started", spark=spark.version, prometheus=listener.port)
    ended = threading.Event()
    teller = threading.Thread(target=_tell_lag, args=(listener, events, ended), daemon=True)
    teller.start()
    stopper = Interruption(spark)
    try:
        result = dispatch.run(spark, declaration, origin, events, settings=settings)
    except (BasculeError, *_spark_errors()):
        if not stopper.asked:
            raise
        facts = run_facts(spark, declaration, origin, settings=settings, started=started)
        return replace(_so_far(declaration, listener), run=facts)
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
    """Return the job's series, and series of lag and micro-batches that the job does not have.

    Rows are left out: a query of the archive passes one row per file to Spark.
    """
    from bascule.pipeline.query_report import series_of

    for _ in range(round(LISTENER_SECONDS_MAX / 0.1)):  # Spark calls listeners asynchronously
        if not any(state.active for state in listener.queries()):
            break
        threading.Event().wait(0.1)
    named = {line.title for line in result.series} | {"Throughput", "Late rows"}
    states = listener.queries()
    found = series_of(states[0]) if states else ()
    return (*result.series, *(line for line in found if line.title not in named))


def _so_far(declaration: Declaration, listener: LagListener) -> JobResult:
    """The result of an interrupted job, from what its queries reported."""
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


def _tell_lag(listener: LagListener, events: EventWriter, ended: threading.Event) -> None:
    """Report lag and rates once a second while a query runs."""
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
    """Stop Spark and Java. It is no failure if Java has already ended."""
    _, java_error = _spark_errors()
    try:
        spark.stop()
    except (java_error, OSError):
        pass


def _spark_errors() -> tuple[type[Exception], type[Exception]]:
    """The exceptions of Spark in Python and of the Py4J gateway. Raises: MissingExtra."""
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
    parser.add_argument("--events", action="store_true", help="write events to standard output")
    parser.add_argument("--tied", action="store_true", help="end when standard input ends")
    return parser.parse_args(arguments)


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _write_news(line: str) -> None:
    """Write an event for readers of the log of `spark-submit`."""
    if '"event": "result"' not in line:
        sys.stderr.write(line)
        sys.stderr.flush()


def _print_result(result: JobResult) -> None:
    import json

    import msgspec

    sys.stdout.write(json.dumps(msgspec.to_builtins(result), default=str) + "\n")


def _failed(events: EventWriter, error: BasculeError, code: int) -> int:
    if not isinstance(error, _Reported):
        name, text = failure_of(error)
        events.tell("failed", error=name, text=text)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_with_starter() -> None:
    """Stop in order when standard input ends, because the parent process has ended, perhaps by kill
    -9.

    Java ends with this process: its standard input is a pipe from here.
    """

    def watch() -> None:
        while os.read(0, 4_096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(STOP_SECONDS_MAX)
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()
