"""Join a stream with a table in Spark: orders with the prices of what is ordered.

    python table_join.py             # prices as they are when the query begins
    python table_join.py --changing  # prices as they are when each batch of orders is read

Orders are messages on `orders.PRODUCT`; a price is the value of the key PRODUCT of table `prices`.
Started again, it goes on behind the orders that it has written.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from bascule.pipeline.session import local_session


def table_rows(spark: SparkSession, *, server: str, table: str) -> DataFrame:
    """The keys of a table with their values, as they are when an action reads the frame."""
    return (
        spark.read.format("bascule")
        .option("server", server)
        .option("stream", table)
        .option("view", "latest")
        .option("columns", "key,value,offset")
        .load()
        # The key of the record is the subject; characters beyond [A-Za-z0-9_/=.-] are %XX there.
        .select(
            f.substring("key", len(f"$KV.{table}.") + 1, 1024).cast("string").alias("product"),
            f.col("value").cast("string").cast("double").alias("price"),
            f.col("offset").alias("version"),
        )
    )


def orders(spark: SparkSession, *, server: str, stream: str) -> DataFrame:
    """The orders from the first one on, as a streaming frame."""
    return (
        spark.readStream.format("bascule")
        .option("server", server)
        .option("stream", stream)
        .option("startingOffsets", "earliest")
        .option("columns", "subject,value,offset")
        .load()
        .select(
            f.col("offset").alias("number"),
            f.element_at(f.split("subject", "[.]"), -1).alias("product"),
            f.col("value").cast("string").cast("int").alias("pieces"),
        )
    )


def start(
    spark: SparkSession, *, server: str, stream: str, table: str, out: Path, changing: bool
) -> StreamingQuery:
    """Write orders with prices to Parquet files in `out`; an order without a price has none."""
    prices = None
    if not changing:
        prices = table_rows(spark, server=server, table=table).cache()
        prices.count()  # read now, once

    def write(batch: DataFrame, number: int) -> None:
        present = prices
        if present is None:
            present = table_rows(spark, server=server, table=table)
        priced = batch.join(f.broadcast(present), "product", "left")
        # A batch that is repeated after a crash replaces what it had written.
        priced.coalesce(1).write.mode("overwrite").parquet(str(out / f"batch={number}"))

    return (
        orders(spark, server=server, stream=stream)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(out / "_checkpoint"))
        .start()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="", help="the node, else BASCULE_SERVER")
    parser.add_argument("--stream", default="orders")
    parser.add_argument("--table", default="prices")
    parser.add_argument("--out", type=Path, default=Path("priced-orders"))
    parser.add_argument("--changing", action="store_true", help="read the prices for each batch")
    said = parser.parse_args()
    spark = local_session(name="table-join")
    query = start(
        spark, server=said.server, stream=said.stream, table=said.table, out=said.out,
        changing=said.changing,
    )  # fmt: skip
    query.processAllAvailable()
    query.stop()
    for row in spark.read.parquet(str(said.out)).orderBy("number").collect():
        price = "no price" if row.price is None else f"{row.price:g} each"
        print(f"order {row.number}: {row.pieces} {row['product']}, {price}")


if __name__ == "__main__":
    main()
