"""The options of `bascule stream`, units, and what its tables show, without a node."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.main import get_command

from bascule.cli import exit_codes
from bascule.cli.groups.tables import groups_table, offsets_table
from bascule.cli.main import command_line, main
from bascule.cli.output import PipeConsole
from bascule.cli.streams.commands import _held, _purge_question
from bascule.cli.streams.settings import SETTINGS
from bascule.cli.streams.tables import (
    kept_text,
    partitions_table,
    purged_table,
    state_text,
    stream_as_json,
    stream_detail,
    streams_table,
    waits_text,
)
from bascule.cli.units import (
    count_text,
    parse_count,
    parse_duration,
    parse_moment,
    parse_size,
)
from bascule.client import PurgedPartition
from bascule.group_results import (
    CommittedOffset,
    GroupListing,
    GroupOffset,
)
from bascule.model import (
    Cleanup,
    DuplicateStream,
    PartitionInfo,
    StreamConfig,
    StreamDefinition,
    StreamInfo,
)

DAY = 86_400_000


def shown(table: Any) -> str:
    console = Console(width=200, record=True, file=None, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def a_stream(**changes: Any) -> StreamInfo:
    config = replace(StreamConfig(subject="a.>"), **changes)
    definition = StreamDefinition(name="a", id=b"i" * 16, created_ms=0, config=config)
    partition = PartitionInfo(0, 5, 1_040, 1_041, 1_042, 1, 2_048)
    return StreamInfo(definition, (partition, replace(partition, partition=1)))


@pytest.mark.parametrize(
    ("text", "bytes"),
    [
        ("0", 0),
        ("none", 0),
        ("4096", 4_096),
        ("1_000", 1_000),
        ("10GiB", 10 << 30),
        ("10 gib", 10 << 30),
        ("512k", 512 << 10),
        ("1.5M", 3 << 19),
        ("1.5GB", 1_500_000_000),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str, bytes: int) -> None:
    assert parse_size(text) == bytes


@pytest.mark.parametrize(
    ("text", "ms"),
    [("none", 0), ("0", 0), ("7d", 7 * DAY), ("1.5h", 5_400_000), ("90s", 90_000),
     ("250ms", 250), ("2w", 14 * DAY), ("5 min", 300_000), ("5m", 300_000),
     ("1h30m", 5_400_000), ("1d 12h", 36 * 3_600_000), ("2m30s", 150_000), ("1s250ms", 1_250)],
)  # fmt: skip
def test_times(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "7", "-1d", "7 years", "d", "1.0001s", "1e3s", "nan d", "30m1h", "1h1h", "1h30", "h30m"],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "10 apples", "GiB", "٣", "99999999999999999999GB", "8388608TiB"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_size(text)


def test_counts_and_moments() -> None:
    assert (parse_count("10k"), parse_count("1.5M"), parse_count("none")) == (10_000, 1_500_000, 0)
    assert parse_moment("1970-01-01T00:00:01Z", now_ms=5) == 1_000
    assert parse_moment("7d", now_ms=8 * DAY) == DAY
    assert parse_moment("1h30m", now_ms=5_400_001) == 1
    for text in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        with pytest.raises(typer.BadParameter, match="is not a time"):
            parse_moment(text, now_ms=0)
    assert parse_moment("19700101T000001Z", now_ms=5) == 1_000
    with pytest.raises(typer.BadParameter, match="is not a time"):
        parse_moment("yesterday", now_ms=0)
    assert [count_text(n) for n in (0, 950, 12_345, 999_999, 4_500_000)] == [
        "0", "950", "12.3k", "1.0M", "4.5M"
    ]  # fmt: skip


def test_every_setting_of_a_stream_has_an_option() -> None:
    named = {item.name for item in fields(StreamConfig)} - {"subject", "group"}
    assert {item.field for item in SETTINGS} == named
    assert len({item.flag for item in SETTINGS}) == len(SETTINGS)


def options_of(command: str) -> set[str]:
    group = get_command(command_line()).commands["stream"]  # type: ignore[attr-defined]
    return {name for option in group.commands[command].params for name in option.opts}


def test_create_offers_all_settings_and_alter_those_that_may_change() -> None:
    flags = {item.flag.partition("/")[0] for item in SETTINGS}
    assert flags <= options_of("create")
    fixed = {"--partition-by", "--key-from"}
    assert options_of("alter") & flags == flags - fixed
    assert "--subject" not in options_of("alter")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "a", "--subject", "a", "--retention", "7"], "is not a duration: expected 7d"),
        (["create", "a", "--subject", "a", "--retention-bytes", "x"], "is not a size"),
        (["create", "a", "--subject", "a", "--cleanup", "delete,x"], "'x' is not one of delete"),
        (["create", "a", "--subject", "a", "--sync", "often"], "'often' is not one of always"),
        (["alter", "a"], "nothing to change"),
        (["alter", "a", "--subject", "b"], "no such option"),
        (["purge", "a", "--to", "1", "--before", "7d"], "expected one of them"),
        (["purge", "a", "--before", "soon"], "is not a time"),
        (["reassign", "a", "--replicas-on", "1,2,x"], "'x' is not the number of a node"),
        (["reassign", "a", "--replicas-on", "0"], "'0' is not the number of a node"),
        (["reassign", "a", "--replicas-on", "1", "--throttle", "-1"], "or none for no limit"),
    ],
)
def test_wrong_settings_are_wrong_usage(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", *arguments]) == exit_codes.USAGE
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert says in told


def test_the_list_says_what_is_kept_and_how_it_is() -> None:
    text = shown(streams_table([a_stream(retention_ms_max=7 * DAY)]))
    assert text.splitlines()[1].split() == [
        "a", "a.>", "always", "2", "2,070", "4.0", "KiB", "7", "d", "ok"
    ]  # fmt: skip
    both = (Cleanup.DELETE, Cleanup.COMPACT)
    limits = {"retention_bytes_max": 1 << 30, "retention_messages_max": 9, "cleanup": both}
    assert kept_text(a_stream(**limits).definition.config) == (
        "1.0 GiB, 9 messages, last of each key"
    )
    assert state_text(a_stream(read_only=True)) == "[yellow]read-only"
    paused = a_stream()
    paused = replace(paused, definition=replace(paused.definition, paused=True))
    assert state_text(paused) == "[yellow]paused"
    refused = replace(paused, refusal="Permissions Violation")
    assert state_text(refused) == "[red]refused by NATS: Permissions Violation"
    waiting = tuple(replace(each, waits="waits for node 1") for each in refused.partitions[:1])
    without = replace(refused, partitions=waiting)
    assert state_text(without) == "[red]1 partition without a leader"
    failed = replace(paused.partitions[0], failure="disk [0] failed")
    assert "stopped: disk [0] failed" in shown(partitions_table([failed]))


def test_a_stream_with_one_replica_shows_where_it_is_in_a_cluster() -> None:
    (partition, *_) = a_stream().partitions
    there = replace(partition, leader=3, replicas=(3,), isr=(3,))
    assert "leader" not in shown(partitions_table([there]))
    assert "leader" in shown(partitions_table([there], with_places=True))
    moving = replace(there, target=(4,), move_waits="its move waits for node 4")
    assert "ok; its move waits for node 4" in shown(partitions_table([moving]))


def test_the_detail_shows_what_differs_from_usual() -> None:
    info = a_stream(retention_ms_max=7 * DAY, dedupe_window_ms=0, partitions=2)
    text = shown(stream_detail(info))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert {"retention 7 d", "partitions 2", "dedupe window none"} <= set(lines)
    assert "segment bytes" not in text
    assert "segment bytes" in shown(stream_detail(info, all_settings=True))


def test_the_detail_shows_what_retention_waits_for() -> None:
    info = a_stream(retention_after="archive")
    commit = CommittedOffset("archive", "a", 0, 1_000, -1, "", 0, 5, 1_040)

    def waits(*commits: CommittedOffset) -> str:
        (line,) = [
            line for line in shown(stream_detail(info, commits)).splitlines() if "waits" in line
        ]
        return " ".join(line.split())

    assert waits() == (
        "retention waits for consumer archive, which has not committed an offset yet; "
        "nothing is removed"
    )
    assert waits(commit) == (
        "retention waits for consumer archive, 1,075 messages behind; "
        "no offset committed yet in partition 1"
    )
    both = waits(commit, replace(commit, partition=1, offset=1_040))
    assert both == "retention waits for consumer archive, 40 messages behind"
    assert "waits" not in shown(stream_detail(a_stream()))


def test_the_detail_and_the_list_show_other_clusters() -> None:
    other = DuplicateStream("b0b0", (1,), "s.*", acks=True, shared=False, conflict=True)
    info = replace(a_stream(), duplicates=(other,))
    assert "in conflict with cluster b0b0 (node 1), on s.*" in " ".join(
        shown(stream_detail(info)).split()
    )
    assert "in conflict with another cluster" in shown(streams_table([info]))
    assert stream_as_json(info)["duplicates"][0]["cluster_id"] == "b0b0"
    info = replace(info, duplicates=(replace(other, acks=False, conflict=False),))
    told = " ".join(shown(stream_detail(info)).split())
    assert "also in cluster b0b0 (node 1), on s.*: it does not answer publishers" in told
    assert "conflict" not in told


def test_a_table_that_is_not_for_a_terminal_is_whole() -> None:
    stream = "s" * 300
    text = io.StringIO()
    out = PipeConsole(file=text, width=40, highlight=False, soft_wrap=True)
    info = a_stream()
    named = replace(info, definition=replace(info.definition, name=stream))
    entry = GroupOffset(stream, 0, 1, 0, 1, "", 0, "m" * 300)
    group = GroupListing("c" * 300, "classic", "Empty", 0, 1, 0)
    for table in (
        streams_table([named]),
        stream_detail(named),
        offsets_table([entry], ()),
        groups_table([group]),
    ):
        out.print(table)
    lines = text.getvalue().splitlines()
    assert sum(stream in line for line in lines) == 3
    assert sum(stream in line and "m" * 300 in line for line in lines) == 1
    assert sum("c" * 300 in line for line in lines) == 1
    assert not set("…\x1b") & set(text.getvalue())
    assert not any(line.endswith(" ") for line in lines), "as long as the longest one"
    out.print("a value ")
    assert text.getvalue().endswith("a value \n")


def test_json_is_that_of_the_api() -> None:
    body = stream_as_json(a_stream())
    assert body["config"].keys() == {item.name for item in fields(StreamConfig)}
    assert body["partitions"][1]["high_watermark"] == 1_040
    assert body["paused"] is False


def test_a_purge_tells_what_went() -> None:
    rows = [PurgedPartition(0, 5, 25, 40, 4_096, 1_024), PurgedPartition(1, 9, 9, 9, 0, 0)]
    first, second = shown(purged_table(rows)).splitlines()[1:]
    assert first.split() == ["0", "5", "25", "20", "15", "3.0", "KiB"]
    assert second.split() == ["1", "9", "9", "0", "0", "0", "B"]


UNKNOWN = "its leader, node 2, does not answer"


def an_unknown_partition(number: int) -> PartitionInfo:
    return PartitionInfo(
        number, None, None, None, None, 1, None, leader=2, bytes_behind=None,
        replicated_offset=None, unknown=UNKNOWN,
    )  # fmt: skip


def test_what_nobody_has_told_is_shown_as_unknown() -> None:
    info = a_stream()
    known, _ = info.partitions
    some = replace(info, partitions=(known, an_unknown_partition(1)))
    (row,) = shown(streams_table([some])).splitlines()[1:]
    assert "at least 1,035  at least 2.0 KiB" in row
    assert row.endswith(f"1 partition unknown: {UNKNOWN}")
    none = replace(info, partitions=(an_unknown_partition(0), an_unknown_partition(1)))
    (row,) = shown(streams_table([none])).splitlines()[1:]
    assert " 2         -     -  " in row
    assert f"2 partitions unknown: {UNKNOWN}" in row
    table = shown(partitions_table(some.partitions, with_places=True))
    row = table.splitlines()[-1]
    assert row.split()[:9] == ["1", "-", "-", "-", "-", "-", "-", "1", "2"]
    assert f"unknown: {UNKNOWN}" in row
    assert stream_as_json(some)["partitions"][1]["end_offset"] is None
    waiting = replace(
        some, definition=replace(
            some.definition, config=replace(some.definition.config, retention_after="c")
        )
    )  # fmt: skip
    commits = [CommittedOffset("c", "a", n, 1_000, -1, "", 0, None, None) for n in (0, 1)]
    assert "consumer c, at least 40 messages behind" in waits_text(waiting, commits)


def test_a_question_does_not_count_what_nobody_has_told() -> None:
    info = a_stream()
    some = replace(info, partitions=(info.partitions[0], an_unknown_partition(1)))
    asked = dict[str, Any](before_ms=None)
    assert (_held(info, None), _held(some, None), _held(some, 0)) == (2_070, None, 1_035)
    question = _purge_question(some, to=None, partition=None, **asked)
    assert question == "remove all messages (how many is unknown) of stream a?"
    question = _purge_question(some, to=10, partition=1, **asked)
    assert question.startswith("remove messages (how many is unknown) of partition 1")
    assert _purge_question(some, to=10, partition=0, **asked).startswith("remove 5 messages of")


def test_a_purge_whose_result_nobody_has_told_is_shown_as_unknown() -> None:
    (row,) = shown(purged_table([PurgedPartition(0, 5, None, None, 9, None)])).splitlines()[1:]
    assert row.split() == ["0", "5", "-", "-", "-", "-"]
