"""For tests of Spark jobs: a stream, its table, and the jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bascule.client import SyncClient
from bascule.pipeline.jobs.archive.run import run as archive
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.audit.run import AuditSpec
from bascule.pipeline.jobs.audit.run import run as audit
from bascule.pipeline.jobs.model import NO_PROGRESS, JobProgress
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake import open_table
from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.model import LakeTable
from support.processes import Node


class World:
    """A stream, its table, and the jobs."""

    def __init__(self, spark: Any, node: Node, client: SyncClient, stream: str, folder: Path):
        self.spark, self.node, self.client, self.stream = spark, node, client, stream
        self.folder = folder
        self.table = TableSpec(location=str(folder / "lake"))

    def fill(self, count: int, *, first: int = 0) -> None:
        self.client.publish_many(
            (f"{self.stream}.{n % 7}", b"%d" % n, f"k{n % 5}", {"H": "x"} if n % 3 else None)
            for n in range(first, first + count)
        )

    def spec(self, **more: Any) -> ArchiveSpec:
        wanted = {"name": f"archive-{self.stream}", "table": self.table, **more}
        return ArchiveSpec(stream=self.stream, server=self.node.addresses["http"], **wanted)

    def archive(self, **more: Any) -> Any:
        return archive(self.spark, self.spec(**more))

    def audit(self, progress: JobProgress = NO_PROGRESS, **more: Any) -> Any:
        wanted = {"name": "audit", "stream": self.stream, "table": self.table, **more}
        spec = AuditSpec(server=self.node.addresses["http"], **wanted)
        return audit(self.spark, spec, progress)

    def open(self) -> LakeTable:
        return open_table(self.table.address())

    def rows(self, table: LakeTable | None = None) -> list[dict[str, Any]]:
        table = table or self.open()
        snapshot = table.snapshot()
        assert snapshot is not None
        files = table.files(snapshot)
        return [row for batch in read_files(files, table.schema) for row in batch.to_pylist()]

    def offsets(self) -> list[int]:
        return [row["offset"] for row in self.rows()]

    def committed(self) -> dict[int, int]:
        found = self.client.offsets(consumer=f"archive-{self.stream}", stream=self.stream)
        return {entry.partition: entry.offset for entry in found}
