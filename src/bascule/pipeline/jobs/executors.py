"""Runs Python functions in Spark tasks and reports progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from bascule.pipeline.jobs.model import JobProgress

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import DataFrame, Row, SparkSession

POLL_S: Final = 0.3
"""Interval between progress reports."""

T = TypeVar("T")
_SCHEMA: Final = pa.schema([("response", pa.string())])
_groups = iter(range(1 << 62))


def run_on_executors(
    spark: SparkSession,
    items: Sequence[T],
    work: Callable[[T], str],
    *,
    progress: JobProgress,
    weights: Sequence[int],
) -> list[str]:
    """Run `work(item)` for each item in its own task. Return the responses in the order of the
    items.

    `items` and `work` are pickled; `work` is a module-level function or a partial of one.
    `progress` advances by an item's weight when its task is done.

    Raises: Spark's exception for a failed task, which contains the text of the error.
    """
    if not items:
        return []

    def response(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.record_batch([pa.array([work(items[number])], pa.string())], _SCHEMA)

    frame = spark.range(0, len(items), 1, len(items)).mapInArrow(response, "response string")
    return [
        row.response for row in collect_with_progress(frame, progress=progress, total=sum(weights))
    ]


def collect_with_progress(frame: DataFrame, *, progress: JobProgress, total: int) -> list[Row]:
    """Collect the rows of a frame. `progress` advances up to `total` with the completed tasks."""
    context = frame.sparkSession.sparkContext
    group = f"bascule-{next(_groups)}"

    def collect() -> list[Row]:
        context.setJobGroup(group, "bascule", interruptOnCancel=True)
        return frame.collect()

    furthest = 0
    with ThreadPoolExecutor(1, thread_name_prefix=group) as executor:
        coming = executor.submit(collect)
        try:
            while not wait([coming], POLL_S).done:
                furthest = max(furthest, int(total * _share_done(context.statusTracker(), group)))
                progress.advance(furthest)
        except BaseException:
            context.cancelJobGroup(group)
            raise
    rows = coming.result()
    progress.advance(total)
    return rows


def _share_done(tracker: StatusTracker, group: str) -> float:
    """The share of completed tasks among those of the stages that Spark has started."""
    done = count = 0
    for job in tracker.getJobIdsForGroup(group):
        if (info := tracker.getJobInfo(job)) is not None:
            for stage in info.stageIds:
                if (state := tracker.getStageInfo(stage)) is not None:
                    done += state.numCompletedTasks
                    count += state.numTasks
    return done / count if count else 0.0
