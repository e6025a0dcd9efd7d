"""History and tail as one table: what was archived from the lake, what came since from the log.

    python one_view.py

Each flight is in the frame once, wherever the archive ends at this moment.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bascule.pipeline.session import local_session

HERE = Path(__file__).resolve().parent


def one_view(spark: SparkSession, *, server: str, stream: str, lake: Path) -> DataFrame:
    """The stream from its first record to its last, as flights."""
    return (
        spark.read.format("bascule")
        .option("server", server)
        .option("stream", stream)
        .option("archive", f"parquet:{lake}")
        .option("valueFormat", "json")
        .option("valueSchemaFile", str(HERE / "flight.ddl"))
        .option("columns", "offset,value")
        .load()
        .select("offset", "value.*")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="", help="the node, else BASCULE_SERVER")
    parser.add_argument("--stream", default="flights")
    parser.add_argument("--lake", type=Path, default=HERE / "lake" / "flights")
    said = parser.parse_args()
    spark = local_session(name="one-view")
    flights = one_view(spark, server=said.server, stream=said.stream, lake=said.lake)
    # One aggregate is one read, of one moment of the stream.
    by_carrier = (
        flights.groupBy("carrier")
        .agg(
            f.count("*").alias("flights"),
            f.sum("distance").alias("miles"),
            f.round(f.avg("dep_delay"), 1).alias("delay_mean"),
        )
        .orderBy(f.desc("flights"))
        .collect()
    )
    for row in by_carrier:
        print(f"{row.carrier}  {row.flights:>7,} flights  {row.miles:>11,} miles"
              f"  {row.delay_mean or 0:>5} minutes late")  # fmt: skip
    count = sum(row.flights for row in by_carrier)
    print(f"in all {count:,} flights, {sum(row.miles for row in by_carrier):,} miles")


if __name__ == "__main__":
    main()
