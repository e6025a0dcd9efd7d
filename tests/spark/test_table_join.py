"""`examples/table_join.py`: a stream joined with a table that stays, and with one that changes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from bascule.client import SyncClient
from support.processes import Node

pytestmark = pytest.mark.tier3

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "table_join.py"


def rows(spark: Any, out: Path) -> list[tuple[Any, ...]]:
    found = spark.read.parquet(str(out)).orderBy("number").collect()
    return [(row.number, row["product"], row.pieces, row.price) for row in found]


@pytest.mark.parametrize("changing", [False, True], ids=["static", "changing"])
def test_orders_get_the_prices_of_the_start_or_of_now(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path, changing: bool
) -> None:
    table = f"prices-{stream}"
    client.create_table(table)
    prices = client.table(table)
    prices.set("apples", b"7")
    prices.set("pears", b"1")
    prices.set("plums", b"2")
    prices.remove("plums")
    for product in ("apples", "plums"):
        client.publish(f"{stream}.{product}", b"3")
    start = runpy.run_path(str(EXAMPLE))["start"]
    query = start(
        spark, server=node.addresses["http"], stream=stream, table=table, out=tmp_path / "out",
        changing=changing,
    )  # fmt: skip
    try:
        query.processAllAvailable()
        before = [(0, "apples", 3, 7.0), (1, "plums", 3, None)]
        assert rows(spark, tmp_path / "out") == before
        prices.set("apples", b"9.5")
        prices.set("plums", b"4")
        prices.remove("pears")
        for product in ("apples", "plums", "pears"):
            client.publish(f"{stream}.{product}", b"5")
        query.processAllAvailable()
        later = [9.5, 4.0, None] if changing else [7.0, None, 1.0]
        products = ("apples", "plums", "pears")
        assert rows(spark, tmp_path / "out") == before + [
            (2 + n, product, 5, price)
            for n, (product, price) in enumerate(zip(products, later, strict=True))
        ]
    finally:
        query.stop()


@pytest.mark.long
def test_the_example_goes_on_where_it_was(
    spark: Any,
    node: Node,
    client: SyncClient,
    stream: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = f"prices-{stream}"
    client.create_table(table)
    client.table(table).set("apples", b"7")
    arguments = [
        "table_join.py", "--server", node.addresses["http"], "--stream", stream, "--table", table,
        "--out", str(tmp_path / "out"), "--changing",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", arguments)
    told = []
    for price in (b"7", b"8"):
        client.table(table).set("apples", price)
        client.publish(f"{stream}.apples", b"2")
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        told.append(capsys.readouterr().out)
    assert told[0] == "order 0: 2 apples, 7 each\n"
    assert told[1] == f"{told[0]}order 1: 2 apples, 8 each\n"
