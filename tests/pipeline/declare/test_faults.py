"""A check reports everything that a run would refuse, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bascule.cli.pipeline.examples import example
from bascule.errors import ConfigError, InvalidDeclaration
from bascule.pipeline.declare import load
from bascule.pipeline.declare.faults import FAULTS_MAX, DeclarationFaults, faults_of_options
from bascule.pipeline.declare.loader import apply_setting
from bascule.pipeline.jobs.rows import archive_schema
from bascule.pipeline.jobs.tables import TableSpec, ensure_table
from bascule.pipeline.values import ValueSpec

ARCHIVE = """
[pipeline]
name = "flights"
kind = "archive"
{pipeline}

[source]
stream = "flights"
{source}

[value]
format = "json"
schema = "carrier string, at timestamp"

[table]
format = "parquet"
location = "lake"
{table}

[archive]
{archive}
"""


def faults(folder: Path, text: str, *settings: str) -> tuple[str, ...]:
    path = folder / "p.toml"
    path.write_text(text)
    try:
        load(path, environment={}, settings=settings)
    except InvalidDeclaration as refused:
        prefix = f"{path}:"
        assert all(fault.startswith(prefix) for fault in refused.faults)
        assert str(refused) == "\n".join(refused.faults)
        return tuple(fault.removeprefix(prefix) for fault in refused.faults)
    return ()


def archive(
    folder: Path, *, pipeline: str = "", source: str = "", table: str = "", archive: str = ""
) -> tuple[str, ...]:
    text = ARCHIVE.format(pipeline=pipeline, source=source, table=table, archive=archive)
    return faults(folder, text)


def test_a_sound_file_has_none(tmp_path: Path) -> None:
    by = 'partition_by = ["day(timestamp)", "hour(value.at)", "value.carrier"]'
    assert archive(tmp_path, table=by) == ()


def test_every_layer_is_told_at_once(tmp_path: Path) -> None:
    found = archive(
        tmp_path,
        pipeline='trigger = "10x"\nretry_timeout = "soon"\nreprot = "x.html"\nmaster = "${MASTER}"',
        source='maxOffsetsPerTrigger = "many"\nminPartitions = 3\nfialOnDataLoss = false',
        table='partition_by = ["dya(timestamp)", "bucket(16, subject)", "hour(nosuch)", "key"]',
        archive="compact_evry = 1\nraw = 3\ncompact_every = -1\nfile_bytes = 0",
    )
    expected = (
        "pipeline.master names ${MASTER}, which is not set",
        "pipeline.reprot is unknown; did you mean pipeline.report?",
        "pipeline.trigger: '10x' is not a trigger",
        "pipeline.retry_timeout: option 'retry_timeout' is 'soon'",
        "source.fialOnDataLoss is not allowed for kind archive; known: stream, startingOffsets",
        "source.minPartitions is not allowed for kind archive",
        "source.maxOffsetsPerTrigger is wrong: expected int, got str",
        "archive.raw is wrong: expected bool, got int",
        "archive.compact_evry is unknown; did you mean archive.compact_every?",
        "[archive]: file_bytes is 0: expected at least 1",
        "[archive]: compact_every is -1: expected at least 0",
    )
    for text in expected:
        assert any(fault.startswith(text) for fault in found), (text, found)


def test_every_partition_field_is_told(tmp_path: Path) -> None:
    by = ["dya(timestamp)", "bucket(16, subject)", "hour(nosuch)", "key", "subject", "subject"]
    found = archive(tmp_path, table=f"partition_by = {by}")
    assert [fault.partition("'")[2].partition("'")[0] for fault in found] == [*by[:4], "subject"]
    assert "dya is not one of year, month, day, hour" in found[0]
    assert "bucket is not supported" in found[1]
    assert "there is no column 'nosuch'" in found[2]


def test_columns_of_an_archive_are_known_although_its_values_are_not(tmp_path: Path) -> None:
    text = ARCHIVE.replace("at timestamp", "at tmiestamp").format(
        pipeline="", source="", archive="",
        table='partition_by = ["hour(nosuch)", "value.anything", "day(value.at)"]',
    )  # fmt: skip
    value, field = faults(tmp_path, text)
    assert value.startswith("[value]: option 'valueSchema'")
    assert "'hour(nosuch)': there is no column 'nosuch'" in field


def test_fields_of_an_sql_result_are_checked_without_its_columns(tmp_path: Path) -> None:
    text = example("rollup").replace('["carrier"]', '["day(anything)", "x.y", "dya(at)"]')
    (found,) = faults(tmp_path, text)
    assert "partition field 'dya(at)'" in found
    text = example("compact-lake").replace(
        'name = "archive.flights_by_key"', 'name = "x"\npartition_by = ["truncate(2, key)"]'
    )
    found = faults(tmp_path, text)
    assert any("[compact_lake]: an iceberg table needs a name" in fault for fault in found)
    assert any("compact_lake.into.partition_by" in fault for fault in found)


def test_each_part_of_an_address_is_told(tmp_path: Path) -> None:
    text = ARCHIVE.format(pipeline="", source="", table="", archive="")
    found = faults(tmp_path, text, "table.format=iceberg", "table.location=", "table.name=x")
    assert [fault.startswith("[table]: an iceberg table needs a") for fault in found] == [True] * 2
    found = faults(tmp_path, text, "table.location=", "table.name=a.b")
    assert ["named by its location alone" in found[0], "needs a location" in found[1]] == [True] * 2


def test_a_value_fault_is_told_once(tmp_path: Path) -> None:
    text = example("rollup").replace("carrier string", "carrier strnig")
    (found,) = faults(tmp_path, text)
    assert found.startswith("[value]: option 'valueSchema'")


def test_what_only_spark_would_refuse_in_a_rollup(tmp_path: Path) -> None:
    text = example("rollup").replace("10 minutes", "ten minutes").replace("FROM records", "FROM r")
    assert [fault[:24] for fault in faults(tmp_path, text)] == [
        "[rollup]: sql does not r", "[rollup]: watermark.dela",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("delay", "is_sound"),
    [("10 minutes", True), ("1 hour 30 minutes", True), ("interval 5 Seconds", True),
     ("0 seconds", True), ("10", False), ("-1 hour", False), ("10 minuts", False), ("", False)],
)  # fmt: skip
def test_the_delay_of_a_watermark(tmp_path: Path, delay: str, is_sound: bool) -> None:
    text = example("rollup").replace("10 minutes", delay)
    assert (faults(tmp_path, text) == ()) is is_sound


def test_a_sink_is_checked_for_the_mode_of_its_rollup(tmp_path: Path) -> None:
    text = example("rollup")
    table = text[text.index("[table]") : text.index("# [sink]")]
    sink = '[sink]\nstream = "by-hour"\nmessageIdPrefix = "x"\nwindow = "0"\n'
    found = faults(tmp_path, text.replace(table, sink))
    assert len(found) == 2
    assert any('"messageIdPrefix" is for write' in fault for fault in found)
    (found_update,) = faults(tmp_path, text.replace(table, sink), 'rollup.mode="update"')
    assert "option 'window' is '0'" in found_update


def test_options_that_are_wrong_only_together(tmp_path: Path) -> None:
    text = example("rollup").replace(
        "# maxOffsetsPerTrigger = 1000000",
        'minOffsetsPerTrigger = 9\nmaxOffsetsPerTrigger = 5\ncolumns = "nosuch"\n#',
    )
    found = faults(tmp_path, text)
    assert len(found) == 2
    assert '"minOffsetsPerTrigger" is 9, more than' in found[1]


def test_a_table_that_exists_is_compared(tmp_path: Path) -> None:
    value = ValueSpec.from_options(
        {"valueformat": "json", "valueschema": "carrier string, at timestamp"}
    )
    ensure_table(
        TableSpec(location=str(tmp_path / "lake")).address(),
        archive_schema(value.arrow_type(), raw=False),
        ("day(timestamp)",),
    )  # fmt: skip
    assert archive(tmp_path, table='partition_by = ["day(timestamp)"]') == ()
    (found,) = archive(tmp_path, table='partition_by = ["subject"]')
    assert "is partitioned by day(timestamp), asked for subject" in found
    (found,) = archive(tmp_path, archive="raw = true")
    assert "has columns" in found


def test_replays_of_nothing(tmp_path: Path) -> None:
    text = example("replay").replace("# start_offset = 0", "start_offset = 9\nend_offset = 3")
    text = text.replace("# start_ms = 1767225600000", "start_ms = 5\nend_ms = 4\n#")
    assert [fault.partition(": ")[2] for fault in faults(tmp_path, text)] == [
        "start_ms is 5, after end_ms, which is 4",
        "start_offset is 9, after end_offset, which is 3",
    ]


def test_a_file_that_says_too_little_is_told_as_far_as_it_is_read(tmp_path: Path) -> None:
    found = faults(tmp_path, '[pipeline]\nkind = "archve"\nname = "a b"\n[tabel]\nx = 1\n')
    assert [fault.split()[0] for fault in found] == ["pipeline.kind", "pipeline.name", "tabel"]


def test_settings_are_told_with_the_rest(tmp_path: Path) -> None:
    text = ARCHIVE.format(pipeline="", source="", table="", archive="")
    found = faults(tmp_path, text, "nonsense", "table.x=1")
    assert found == (
        "--set 'nonsense': expected key=value, such as table.format=delta",
        "table.x is unknown; known are table.format, table.location, table.name, table.catalog, "
        "table.partition_by",
    )


@pytest.mark.parametrize(
    "key", ["spark.sql.shuffle.partitions", "spark.spark.sql.shuffle.partitions"]
)
def test_a_setting_of_spark_is_one_key_with_dots(key: str) -> None:
    document: dict[str, Any] = {"spark": {"spark.sql.shuffle.partitions": 200, "spark.a": 1}}
    apply_setting(document, f"{key}=8")
    assert document == {"spark": {"spark.sql.shuffle.partitions": 8, "spark.a": 1}}


@pytest.mark.parametrize("setting", ["spark=8", "spark.=8", "spark..a=8"])
def test_malformed_settings_of_spark(tmp_path: Path, setting: str) -> None:
    text = ARCHIVE.format(pipeline="", source="", table="", archive="")
    assert len(faults(tmp_path, text, setting)) == 1


def test_no_end_of_faults() -> None:
    many = DeclarationFaults("f")
    for number in range(FAULTS_MAX + 5):
        many.add(f"k{number}", f"k{number} is wrong")
    with pytest.raises(InvalidDeclaration) as refused:
        many.refuse()
    assert len(refused.value.faults) == FAULTS_MAX + 1
    assert refused.value.faults[-1] == "f: and 5 more"


def test_options_alone_and_together() -> None:
    def parse(options: dict[str, str]) -> None:
        if "base" not in options:
            raise ConfigError("base is missing")
        for name in options:
            if name.startswith("bad"):
                raise ConfigError(f"{name} is bad")
        if {"a", "b"} <= set(options):
            raise ConfigError("a and b exclude each other")

    options = {"base": "1", "bad1": "", "a": "", "bad2": "", "b": ""}
    assert faults_of_options(parse, options, base={"base": "1"}) == [
        "bad1 is bad", "bad2 is bad", "a and b exclude each other",
    ]  # fmt: skip
    assert faults_of_options(parse, {"a": ""}, base={"base": "1"}) == ["base is missing"]
    assert faults_of_options(parse, {"base": ""}, base={}) == []
