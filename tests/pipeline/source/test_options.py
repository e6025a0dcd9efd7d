"""What a user may say to the Spark source."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bascule.errors import ConfigError
from bascule.pipeline.source.options import EARLIEST, LATEST, SourceOptions


def test_everything_at_once() -> None:
    options = SourceOptions.parse(
        {
            "SERVER": "http://h:1",
            "stream": "flights",
            "startingoffsets": '{"0": 12, "1": -2}',
            "endingOffsets": "Latest",
            "maxOffsetsPerTrigger": "500",
            "minPartitions": "4",
            "failOnDataLoss": "FALSE",
        }
    )
    assert options == SourceOptions(
        stream="flights",
        server="http://h:1",
        starting_offsets={0: 12, 1: EARLIEST},
        ending_offsets=LATEST,
        records_per_trigger_max=500,
        partitions_min=4,
        fail_on_data_loss=False,
    )


def test_defaults_and_path() -> None:
    assert SourceOptions.parse({"path": "flights"}) == SourceOptions(stream="flights")
    assert SourceOptions.parse({"stream": "a", "path": "b"}).stream == "a"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, '"stream" is missing'),
        ({"stream": "s", "startingOffset": "1"}, "did you mean 'startingOffsets'"),
        ({"stream": "s", "zzz": "1"}, "known: server, stream"),
        ({"stream": "s", "startingOffsets": "12"}, "expected earliest, latest or JSON"),
        ({"stream": "s", "startingOffsets": "{}"}, "expected earliest, latest or JSON"),
        ({"stream": "s", "startingOffsets": '{"0": 1.5}'}, "expected earliest, latest or JSON"),
        ({"stream": "s", "startingOffsets": '{"x": 1}'}, "expected earliest, latest or JSON"),
        ({"stream": "s", "startingOffsets": '{"0": -3}'}, "expected earliest, latest or JSON"),
        ({"stream": "s", "endingOffsets": "now"}, "'endingOffsets' is 'now'"),
        ({"stream": "s", "maxOffsetsPerTrigger": "0"}, "a whole number of at least 1"),
        ({"stream": "s", "minPartitions": "two"}, "a whole number of at least 1"),
        ({"stream": "s", "failOnDataLoss": "no"}, "expected true or false"),
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


def test_nothing_imports_spark_unasked() -> None:
    script = (
        "import sys, bascule, bascule.client, bascule.pipeline, bascule.pipeline.source.options, "
        "bascule.pipeline.source.positions; sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_package_itself_is_light() -> None:
    script = "import sys, bascule; sys.exit('pyarrow' in sys.modules or 'httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
