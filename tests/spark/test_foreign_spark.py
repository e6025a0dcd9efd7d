"""Archives that another Spark maintains, with the jars of Iceberg and Delta.

{Iceberg, Delta} x {rewrite, optimize, expire, delete, delete by positions} x {audit, one view,
archive}: after what the other Spark did to a table, its audit tells the truth, the one view has the
same rows, and the archive goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake.model import TableFormat
from support.foreign_spark import SITE, ForeignSpark
from support.lake_jobs import World

pytestmark = [
    pytest.mark.tier3,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SITE.exists(), reason="`make foreign-spark` installs the other Spark"),
]

REWRITE_ALL = "options => map('rewrite-all', 'true')"
EXPIRE_ALL = "older_than => timestamp '2099-01-01 00:00:00', retain_last => 1"
DELETE = "DELETE FROM {t} WHERE offset % 10 = 3"
MAINTENANCE: dict[tuple[TableFormat, str], tuple[str, ...]] = {
    ("iceberg", "rewrite"): (
        f"CALL bascule.system.rewrite_data_files(table => 'lake.flights', {REWRITE_ALL})",
    ),
    ("iceberg", "optimize"): (
        "CALL bascule.system.rewrite_data_files(table => 'lake.flights', strategy => 'sort', "
        f"sort_order => 'zorder(subject, key)', {REWRITE_ALL})",
        "CALL bascule.system.rewrite_manifests('lake.flights')",
    ),
    ("iceberg", "expire"): (
        f"CALL bascule.system.rewrite_data_files(table => 'lake.flights', {REWRITE_ALL})",
        f"CALL bascule.system.expire_snapshots(table => 'lake.flights', {EXPIRE_ALL})",
    ),
    ("iceberg", "delete"): (DELETE,),
    ("iceberg", "positions"): (
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        DELETE,
    ),
    ("delta", "rewrite"): ("OPTIMIZE {t}",),
    ("delta", "optimize"): ("OPTIMIZE {t} ZORDER BY (subject)",),
    ("delta", "expire"): ("OPTIMIZE {t}", "VACUUM {t} RETAIN 0 HOURS"),
    ("delta", "delete"): (DELETE,),
    ("delta", "positions"): (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        DELETE,
    ),
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignSpark]:
    running = ForeignSpark(tmp_path_factory.mktemp("foreign") / "log")
    yield running
    running.close()


@pytest.fixture
def lake(world: World, request: pytest.FixtureRequest) -> World:
    """A stream of three partitions, and 600 records of it in a table in the layout of the template
    of `bascule pipeline new archive`."""
    name = world.stream = f"partitions_{world.stream}"
    world.client.create_stream(
        name, f"{name}.>", sync="interval", partitions=3, partition_by="subject"
    )
    form: TableFormat = request.getfixturevalue("form")
    place = (
        {"location": str(world.folder / "warehouse"), "name": "lake.flights"}
        if form == "iceberg"
        else {"location": str(world.folder / "flights")}
    )
    world.table = TableSpec(format=form, partition_by=("day(timestamp)",), **place)  # type: ignore[arg-type]
    world.fill(600)
    world.archive(offsets_per_trigger_max=200)
    return world


def maintain(world: World, foreign: ForeignSpark, action: str) -> None:
    table = world.table
    foreign.ask(warehouse=table.location)
    name = "bascule.lake.flights" if table.format == "iceberg" else f"delta.`{table.location}`"
    foreign.sql(*(text.format(t=name) for text in MAINTENANCE[table.format, action]))


def rows(world: World, **options: str) -> list[tuple[Any, ...]]:
    frame = (
        world.spark.read.format("bascule")
        .options(server=world.node.addresses["http"], stream=world.stream, **options)
        .load()
        .select("partition", "offset", "key", "value", "subject", "timestamp")
    )
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("action", ["rewrite", "optimize", "expire", "delete", "positions"])
@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_table_that_another_spark_maintains(
    lake: World, foreign: ForeignSpark, form: TableFormat, action: str
) -> None:
    logged = rows(lake)
    assert len(logged) == 600
    deletes = action in ("delete", "positions")
    kept = [row for row in logged if not (deletes and row[1] % 10 == 3)]
    maintain(lake, foreign, action)

    found = lake.audit()
    assert found.ok != deletes, found
    assert (found.summary["missing"], found.summary["rows"]) == (600 - len(kept), len(kept))
    if deletes:
        named = {
            (removal["partition"], offset)
            for removal in found.summary["removals"]
            for start, end in removal["offsets"]
            for offset in range(start, end)
        }
        assert named == {(row[0], row[1]) for row in logged} - {(row[0], row[1]) for row in kept}
        faults = [f["detail"] for f in found.summary["first_faults"] if f["kind"] == "missing"]
        assert all("removed by snapshot" in text for text in faults)
        assert lake.audit(deletions="allowed").ok

    assert rows(lake, archive=str(lake.table.address())) == kept

    lake.fill(60, first=600)
    lake.archive(compact_at_end=True)
    after = lake.audit(deletions="allowed" if deletes else "refused")
    assert after.ok, after
    assert (after.summary["rows"], after.summary["deleted"]) == (len(kept) + 60, 600 - len(kept))


@pytest.mark.parametrize("form", ["iceberg"])
def test_a_stream_of_another_spark_survives_compaction(
    lake: World, foreign: ForeignSpark, form: TableFormat, tmp_path: Path
) -> None:
    """Iceberg's streaming reader skips snapshots that replace files, and fails at others."""
    foreign.ask(warehouse=lake.table.location)
    wanted = {"stream": "bascule.lake.flights", "to": str(tmp_path / "streamed")}
    assert foreign.ask(**wanted) == [[600]]
    lake.fill(60, first=600)
    lake.archive(compact_at_end=True)
    lake.fill(40, first=660)
    lake.archive(compact_every=1)
    assert foreign.ask(**wanted) == [[700]]
