"""What a user may say to the Spark source."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from bascule.errors import ConfigError
from bascule.pipeline.source.bounds import parse_offsets, parse_time
from bascule.pipeline.source.columns import schema_ddl
from bascule.pipeline.source.options import Selection, SourceOptions


def test_a_group_elects_commits_and_survives_its_leader() -> None:
    options = SourceOptions.parse(
        {
            "SERVER": "http://h:1",
            "streams": "flights, orders,flights",
            "startingoffsets": '{"flights": {"0": 12}, "orders": {"0": -2}}',
            "endingTimestamp": "1767225600000",
            "minPartitions": "4",
            "maxRecordsPerPartition": "1000",
            "failOnDataLoss": "FALSE",
            "includeHeaders": "true",
            "columns": "offset, value,headers",
            "pushdown": "true",
            "startingOffsetsByTimestampStrategy": "latest",
        }
    )
    assert options.selection == Selection(names=("flights", "orders"))
    assert options.server == "http://h:1"
    said = '{"flights": {"0": 12}, "orders": {"0": -2}}'
    assert options.starting == parse_offsets("startingOffsets", said)
    assert options.ending == parse_time("endingTimestamp", "1767225600000")
    assert (options.partitions_min, options.records_per_task_max) == (4, 1000)
    assert (options.fail_on_data_loss, options.pushdown) == (False, True)
    assert (options.include_headers, options.late_start_is_latest) == (True, True)
    assert options.columns == ("offset", "value", "headers")
    assert pickle.loads(pickle.dumps(options)) == options


def test_of_a_streaming_query() -> None:
    options = SourceOptions.parse(
        {
            "streamPattern": "flights.*",
            "maxOffsetsPerTrigger": "500",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "90s",
        }
    ).for_stream()
    assert options.selection == Selection(pattern="flights.*")
    assert (options.records_per_trigger_max, options.records_per_trigger_min) == (500, 5)
    assert options.trigger_delay_ms_max == 90_000


def test_defaults_and_path() -> None:
    assert SourceOptions.parse({"path": "flights"}) == SourceOptions(Selection(names=("flights",)))
    both = SourceOptions.parse({"stream": "a", "path": "b"})
    assert both.selection == Selection(names=("a",))


def test_the_first_of_several_starts_holds() -> None:
    """As in Kafka's connector: a time before times before offsets."""
    said = {"stream": "s", "startingOffsets": "earliest", "startingTimestamp": "5"}
    starting = SourceOptions.parse(said).starting
    assert starting is not None
    assert starting.option == "startingTimestamp"


def test_schemas() -> None:
    def ddl(**more: str) -> str:
        return schema_ddl(SourceOptions.parse({"stream": "s", **more})).replace("`", "")

    plain = (
        "key binary, value binary, subject string, stream string, partition int, offset bigint, "
        "timestamp timestamp"
    )
    assert ddl() == plain
    assert ddl(includeHeaders="true") == f"{plain}, headers array<struct<key:string,value:binary>>"
    assert ddl(columns="offset,key") == "offset bigint, key binary"
    assert ddl(payloads="describe") == f"{plain}, payload_bytes bigint"
    assert ddl(columns="payload_bytes,offset") == "payload_bytes bigint, offset bigint"
    assert ddl(view="changes") == f"{plain}, change string"
    typed = plain.replace("value binary", "value struct<a:int>")
    json = {"valueFormat": "json", "valueSchema": "a int"}
    assert ddl(**json) == f"{typed}, _corrupt_record binary"
    assert ddl(**json, mode="FAILFAST") == typed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "is missing"),
        ({"stream": "s", "startingOffset": "1"}, "did you mean 'startingOffsets'"),
        ({"stream": "s", "zzz": "1"}, "known: server, stream"),
        ({"stream": "s", "streams": "a,b"}, "exclude each other"),
        ({"stream": "s", "payloads": "all"}, "none, describe or inline"),
        ({"stream": "s", "payloadBytesMax": "5"}, "goes with payloads"),
        ({"stream": "s", "payloads": "inline", "archive": "parquet:/t"}, "does not go with"),
        ({"streams": "a,,b"}, "expected names with commas between"),
        ({"streamPattern": "("}, "not a regular expression"),
        ({"stream": "s", "startingOffsets": "12"}, "expected earliest, latest or JSON"),
        ({"stream": "s", "endingOffsets": "now"}, "'endingOffsets' is 'now'"),
        ({"stream": "s", "maxOffsetsPerTrigger": "0"}, "a whole number of at least 1"),
        ({"stream": "s", "minPartitions": "two"}, "a whole number of at least 1"),
        ({"stream": "s", "failOnDataLoss": "no"}, "expected true or false"),
        ({"stream": "s", "maxTriggerDelay": "90"}, "expected a time such as"),
        ({"stream": "s", "view": "newest"}, "expected log, latest or changes"),
        ({"stream": "s", "columns": "offset,nope"}, "names 'nope'; there are key, value"),
        ({"stream": "s", "columns": "offset,offset"}, "names a column twice"),
        ({"stream": "s", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "more than"),
        ({"stream": "s", "archive.catalog.uri": "x"}, 'without "archive"'),
    ],
)
def test_mistakes_are_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        SourceOptions.parse(options)
    assert said in str(raised.value)


def test_options_of_the_other_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="is for readStream"):
        SourceOptions.parse({"stream": "s", "maxOffsetsPerTrigger": "5"}).for_batch()
    with pytest.raises(ConfigError, match="is for read"):
        SourceOptions.parse({"stream": "s", "endingOffsets": "latest"}).for_stream()
    with pytest.raises(ConfigError, match='"changes"'):
        SourceOptions.parse({"stream": "s", "view": "latest"}).for_stream()


def test_nothing_imports_spark_unasked() -> None:
    script = (
        "import sys, bascule, bascule.client, bascule.pipeline, bascule.pipeline.source.planning; "
        "sys.exit(bool({'pyspark', 'pyiceberg', 'deltalake', 'fastavro'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_package_itself_is_light() -> None:
    script = "import sys, bascule; sys.exit('pyarrow' in sys.modules or 'httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
