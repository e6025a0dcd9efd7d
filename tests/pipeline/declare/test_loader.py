"""A declaration is read whole or refused with file and key, before Java is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.errors import ConfigError
from bascule.pipeline.declare import Declaration, load
from bascule.pipeline.declare.loader import all_keys, parse
from bascule.pipeline.declare.validation import source_options
from bascule.pipeline.trigger import trigger_ms

ROLLUP = """
[pipeline]
name = "by-carrier"
kind = "rollup"
checkpoint = "checkpoint"

[source]
stream = "flights"
startingOffsets = { 0 = 12 }
failOnDataLoss = false

[rollup]
sql = "SELECT window, count(*) AS n FROM records GROUP BY window(timestamp, '1 minute')"
watermark = { delay = "10 minutes" }

[table]
format = "delta"
location = "lake/by_carrier"
"""


def loaded(
    folder: Path, *settings: str, text: str = ROLLUP, environment: dict[str, str] | None = None
) -> Declaration:
    path = folder / "p.toml"
    path.write_text(text)
    return load(path, environment=environment or {}, settings=settings)


def test_a_whole_file(tmp_path: Path) -> None:
    declaration = loaded(tmp_path)
    assert declaration.pipeline.name == "by-carrier"
    assert declaration.rollup is not None
    assert declaration.rollup.watermark is not None
    assert declaration.rollup.watermark.column == "timestamp"
    assert source_options(declaration) == {
        "stream": "flights",
        "startingOffsets": '{"0": 12}',
        "failOnDataLoss": "false",
    }


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    declaration = loaded(tmp_path)
    assert declaration.pipeline.checkpoint == str(tmp_path / "checkpoint")
    assert declaration.table is not None
    assert declaration.table.location == str(tmp_path / "lake/by_carrier")


def test_uris_stay_as_they_are(tmp_path: Path) -> None:
    declaration = loaded(tmp_path, "table.location=s3://bucket/lake")
    assert declaration.table is not None
    assert declaration.table.location == "s3://bucket/lake"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("tabel.format=delta", "tabel is unknown; did you mean table?"),
        ("table.formt=delta", "table.formt is unknown; did you mean table.format?"),
        ("table.sql=1", "table.sql is unknown; did you mean rollup.sql?"),
        ("rollup.watermark.dela=1", "rollup.watermark.dela is unknown; did you mean rollup.wat"),
        ("table.format=delat", "table.format is wrong: invalid enum value 'delat'; expected one "),
        ("pipeline.name=a b", "pipeline.name is wrong: expected str of letters, digits, dot"),
        ("pipeline.prometheus_port=70000", "pipeline.prometheus_port is wrong: expected int <= 6"),
        (
            "pipeline.trigger=10x",
            "pipeline.trigger: '10x' is not a trigger: expected available",
        ),
        ("pipeline.checkpoint=", "pipeline.checkpoint is missing: kind rollup needs it"),
        ("pipeline.kind=archive", "[rollup] is not allowed for kind archive"),
        ("source.strem=x", "[source]: option 'strem' is unknown; did you mean 'stream'?"),
        ("source.server=x", "source.server belongs in pipeline.server"),
        ("source.valueFormat=json", "source.valueFormat belongs in [value]"),
        ("source.endingOffsets=latest", '[source]: option "endingOffsets" is for read'),
        ("rollup.sql=SELECT 1", "[rollup]: sql does not read FROM records"),
        ("table.format=iceberg", "[table]: an iceberg table needs a name"),
        ("table.location=", "[table]: a delta table needs a location"),
        ("sink.stream=x", "a rollup needs exactly one of [table] and [sink]"),
        ("table.location=${NOWHERE}", "table.location names ${NOWHERE}, which is not set"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, setting: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, setting)
    assert f"{tmp_path}/p.toml:" in str(refused.value)
    assert expected in str(refused.value)


def test_append_mode_needs_a_watermark(tmp_path: Path) -> None:
    text = ROLLUP.replace('watermark = { delay = "10 minutes" }', "")
    with pytest.raises(ConfigError, match="watermark is missing: in append mode"):
        loaded(tmp_path, text=text)
    assert loaded(tmp_path, "rollup.mode=update", text=text)


@pytest.mark.parametrize("text", ["= 1", "[pipeline", "a = " + "[" * 5_000])
def test_text_that_is_no_toml(text: str) -> None:
    with pytest.raises(ConfigError, match=r"p\.toml is not valid TOML"):
        parse(text, "p.toml", environment={})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml", environment={})


@pytest.mark.parametrize("setting", ["table.format", "=1", "table..format=1"])
def test_a_setting_that_is_none(setting: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse(ROLLUP, "p.toml", environment={}, settings=[setting])


def test_a_setting_below_a_plain_value() -> None:
    with pytest.raises(ConfigError, match="name is a value"):
        parse(ROLLUP, "p.toml", environment={}, settings=["pipeline.name.x=1"])


def test_variables_are_expanded_and_their_values_never_told(tmp_path: Path) -> None:
    environment = {"SECRET": "hunter2", "EMPTY": ""}
    iceberg = ["table.format=iceberg", "table.name=lake.flights"]
    declaration = loaded(
        tmp_path,
        *iceberg,
        'table.catalog={ token = "${SECRET}", uri = "${EMPTY:-sqlite}", text = "$${SECRET}" }',
        environment=environment,
    )
    assert declaration.table is not None
    assert declaration.table.catalog == {
        "token": "hunter2", "uri": "sqlite", "text": "${SECRET}",
    }  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, 'table.partition_by="${SECRET}"', environment=environment)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("available-now", None), ("10s", 10_000), ("500ms", 500), ("1 min", 60_000), ("0s", 0)],
)
def test_triggers(text: str, expected: int | None) -> None:
    assert trigger_ms(text) == expected


def test_every_key_is_known_by_its_dotted_name() -> None:
    keys = all_keys()
    assert {"pipeline.name", "table.catalog", "rollup.watermark.delay", "spark"} <= set(keys)
    assert len(keys) == len(set(keys))
