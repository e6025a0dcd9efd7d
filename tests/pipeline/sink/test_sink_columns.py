"""Which columns of a frame are published."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from bascule.errors import ColumnMismatch
from bascule.pipeline.sink.columns import Projection, projection_of

TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "map<string,binary>": pa.map_(pa.string(), pa.binary()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    "array<struct<key:string,value:binary>>": pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.binary())])
    ),
    "array<string>": pa.list_(pa.string()),
}


def chosen(
    columns: list[tuple[str, str]], *, fixed_subject: bool = False, headers: bool = True
) -> Projection:
    return projection_of(
        columns, lambda index: TYPES[columns[index][1]], fixed_subject=fixed_subject,
        headers=headers,
    )  # fmt: skip


def test_columns_are_found_in_any_order_and_case() -> None:
    projection = chosen(
        [
            ("Value", "string"),
            ("offset", "bigint"),
            ("messageId", "string"),
            ("headers", "map<string,binary>"),
            ("SUBJECT", "string"),
            ("key", "binary"),
            ("partition", "bigint"),
        ]
    )
    assert projection.names == ("value", "message_id", "headers", "subject", "key")
    assert projection.indexes == (0, 2, 3, 4, 5)
    assert pickle.loads(pickle.dumps(projection)) == projection


def test_a_batch_is_projected_without_copying() -> None:
    projection = chosen([("offset", "bigint"), ("Value", "string"), ("subject", "string")])
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["v"], "c": ["s"]})
    projected = projection.of(batch)
    assert projected.to_pydict() == {"value": ["v"], "subject": ["s"]}
    assert projected.column(0).buffers()[2].address == batch.column(1).buffers()[2].address


def test_options_stand_for_columns() -> None:
    columns = [("subject", "bigint"), ("value", "binary"), ("headers", "array<string>")]
    assert chosen(columns, fixed_subject=True, headers=False).names == ("value",)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("subject", "string")], "column 'value': found no such column, expected binary or str"),
        ([("value", "string")], "column 'subject': found no such column or option"),
        ([("value", "bigint"), ("subject", "string")], "column 'value': found bigint, expected"),
        ([("value", "string"), ("Subject", "binary")], "column 'Subject': found binary, expected"),
        ([("value", "string"), ("subject", "string"), ("vlaue", "string")], "column 'vlaue'"),
        ([("value", "string"), ("subject", "string"), ("Value", "string")], "found two of them"),
        (
            [("value", "string"), ("subject", "string"), ("headers", "map<string,bigint>")],
            "column 'headers': found map<string,bigint>, expected array<struct<key",
        ),
        (
            [("value", "string"), ("subject", "string"), ("headers", "array<string>")],
            "column 'headers': found array<string>",
        ),
        (
            [("value", "string"), ("subject", "string"), ("messageId", "bigint")],
            "column 'messageId': found bigint, expected string",
        ),
    ],
)
def test_mistakes_name_column_found_and_expected(columns: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ColumnMismatch) as caught:
        chosen(columns)
    assert said in str(caught.value)
