"""One Spark, one node and one client for every test with Spark in this process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.client import SyncClient
from bascule.pipeline.session import SHORT_LIVED, local_session
from support.lake_jobs import World
from support.processes import Node

SETTINGS = {
    **SHORT_LIVED,
    "spark.driver.memory": "1g",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
}


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that keeps its ports when it is started again; a test that stops it starts it."""
    node = Node(tmp_path_factory.mktemp("node"), keep_ports=True)
    node.start()
    yield node
    node.stop()


@pytest.fixture(scope="session")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    folder = tmp_path_factory.mktemp("spark")
    spark = local_session(folder, master="local[2]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture
def stream(client: SyncClient, request: pytest.FixtureRequest) -> str:
    """A stream named for the file, the test and its parameters; it takes `<its name>.>`."""
    name = f"{request.path.stem}_{request.node.name}".replace("test_", "")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")
    client.create_stream(name, f"{name}.>", sync="interval")
    return str(name)


@pytest.fixture
def world(spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path) -> World:
    return World(spark, node, client, stream, tmp_path)
