"""A Spark with the jars of Iceberg and Delta, in a process of its own: `support.foreign_spark`.

It runs without the package under test, on the Spark version that these jars are made for. Each line
of standard input is a JSON object, and each answer is a line of standard output. What Java prints
there, such as the result of VACUUM, goes to standard error:

    {"warehouse": "/w"}                       a new session, its catalog `bascule` is /w/catalog.db
    {"sql": "OPTIMIZE delta.`/t`"}            runs a statement; {"rows": [...]}
    {"stream": "bascule.lake.t", "to": "/f"}  streams new rows of a table to Parquet files in /f
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "org.xerial:sqlite-jdbc:3.54.1.0",
)
EXTENSIONS = (
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "io.delta.sql.DeltaSparkSessionExtension",
)


def base_session() -> SparkSession:
    builder: Any = SparkSession.builder
    settings = {
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.sql.extensions": ",".join(EXTENSIONS),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def session_for(base: SparkSession, warehouse: str) -> SparkSession:
    """A session whose catalog is the SQLite file in a warehouse. Its rows carry the name."""
    session = base.newSession()
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        ".warehouse": f"file://{warehouse}",
        ".cache-enabled": "false",
    }
    for name, value in catalog.items():
        session.conf.set(f"spark.sql.catalog.bascule{name}", value)
    return session


def stream(session: SparkSession, table: str, folder: str) -> list[Any]:
    query = (
        session.readStream.format("iceberg")
        .load(table)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()
    return [[session.read.parquet(f"{folder}/rows").count()]]


def answer(session: SparkSession, asked: dict[str, str]) -> list[Any]:
    if "sql" in asked:
        return [list(row) for row in session.sql(asked["sql"]).collect()]
    return stream(session, asked["stream"], asked["to"])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    base = session = base_session()
    for line in sys.stdin:
        asked = json.loads(line)
        told: dict[str, Any] = {"rows": []}
        try:
            if "warehouse" in asked:
                session = session_for(base, asked["warehouse"])
            else:
                told["rows"] = answer(session, asked)
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(told, default=str) + "\n")
        answers.flush()
    base.stop()


if __name__ == "__main__":
    main()
