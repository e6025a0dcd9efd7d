"""A read that was planned for a stream that is another one when its tasks run, on a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.client import connect_sync
from bascule.errors import DataLoss
from bascule.pipeline.source.filters import ALL
from bascule.pipeline.source.options import SourceOptions
from bascule.pipeline.source.planning import ReadTask, plan_batch_read, run_task
from support.processes import running_node


def test_records_of_another_stream_are_not_taken_for_the_planned_ones(tmp_path: Path) -> None:
    with running_node(tmp_path) as node, connect_sync(node.addresses["http"]) as client:

        def fill(value: bytes) -> None:
            node.create("flights", "flights")
            for _ in range(10):
                client.publish("flights", value)

        def read(tasks: list[ReadTask], options: SourceOptions) -> list[bytes]:
            return [
                value
                for task in tasks
                for batch in run_task(options, task, ALL)
                for value in batch.column(0).to_pylist()
            ]

        given = {"server": node.addresses["http"], "stream": "flights", "columns": "value"}
        options = SourceOptions.parse({**given, "minPartitions": "2"}).for_batch()
        lenient = SourceOptions.parse({**given, "failOnDataLoss": "false"}).for_batch()
        fill(b"old")
        tasks = plan_batch_read(options, ALL)
        assert len(tasks) == 2
        assert read(tasks, options) == [b"old"] * 10
        node.call("DELETE", "/v1/streams/flights")
        fill(b"new")
        with pytest.raises(DataLoss, match="created again meanwhile"):
            read(tasks[1:], options)
        assert read(tasks, lenient) == [b"new"] * 10
        assert read(plan_batch_read(options, ALL), options) == [b"new"] * 10
