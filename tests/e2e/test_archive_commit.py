"""The commit of an archive's batch on a real node. `tests/spark/test_archive.py` has whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.client import connect_sync
from bascule.errors import DataLoss
from bascule.pipeline.jobs.archive.commit import encode_task_output
from bascule.pipeline.jobs.archive.data_source import ArchiveCommitMessage, ArchiveCommitWriter
from bascule.pipeline.jobs.archive.endpoints import open_endpoints
from bascule.pipeline.jobs.archive.plan import ArchiveRange
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.archive.task import archive_range
from bascule.pipeline.jobs.tables import TableSpec
from support.processes import Node, running_node


def filled(node: Node, name: str, value: bytes) -> str:
    """Create a stream with ten messages; its id."""
    node.create(name, name)
    with connect_sync(node.addresses["http"]) as client:
        for _ in range(10):
            client.publish(name, value)
        return client.stream(name).definition.id.hex()


def test_a_stream_that_is_created_again_while_tasks_read_is_not_committed(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        spec = ArchiveSpec(
            name="flights-archive",
            stream="flights",
            server=node.addresses["http"],
            table=TableSpec(location=str(tmp_path / "lake")),
        )

        def commit(stream_id: str, start: int, end: int) -> None:
            task_spec = open_endpoints(spec).task_spec(stream_id)
            written = archive_range(task_spec, ArchiveRange(0, start, end))
            message = ArchiveCommitMessage([encode_task_output(written)])
            ArchiveCommitWriter(spec).commit([message], 0)

        first = filled(node, "flights", b"old")
        commit(first, 0, 5)
        node.call("DELETE", "/v1/streams/flights")
        filled(node, "flights", b"new")
        with pytest.raises(DataLoss, match="created again meanwhile"):
            commit(first, 5, 10)
        snapshot = open_endpoints(spec).main.snapshot()
        assert snapshot is not None
        assert snapshot.committed == {0: (0, 5)}
