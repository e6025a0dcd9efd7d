"""Many streams are created at once, on every node of a cluster, while its controller is killed."""

from __future__ import annotations

import itertools
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from support.clusters import RunningCluster, running_cluster
from support.processes import WAIT_SECONDS_MAX, running_nats, wait_for

pytestmark = pytest.mark.tier3

STREAMS = 120
AT_A_TIME = 12
EACH_NAME_TWICE = 2


def controller_of(cluster: RunningCluster) -> int:
    """The controller that a node knows, once there is one that is alive."""

    def look() -> int | None:
        for node in cluster.alive():
            found = int(node.call("GET", "/v1/cluster")["controller"])
            if cluster.nodes.get(found) in cluster.alive():
                return found
        return None

    any_node = cluster.alive()[0]
    found: int = wait_for(look, any_node.process, any_node.log)
    return found


def create_until_answered(cluster: RunningCluster, number: int) -> dict[str, Any]:
    """Create a stream at one node, then the next, until one answers; return its answer."""
    body = {"name": f"s{number}", "subject": f"s.{number}", "replicas": 2}
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    for attempt in itertools.count():
        nodes = cluster.alive()
        node = nodes[(number + attempt) % len(nodes)]
        try:
            answer: dict[str, Any] = node.call("POST", "/v1/streams", body)
        except HTTPError as error:
            if error.code != 503:
                raise
        except OSError:
            pass  # The node was killed.
        else:
            return answer
        assert time.monotonic() < deadline, f"no node answers for stream {number}"
        time.sleep(0.05)
    raise AssertionError


def test_every_answer_is_kept_when_the_controller_is_killed(tmp_path: Path) -> None:
    """What a controller decided on, and a majority did not store, is gone with it: no creation is
    answered that does not last, and each name is one stream on every node."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path, nats=nats.url) as cluster,
        ThreadPoolExecutor(AT_A_TIME) as threads,
    ):
        first = controller_of(cluster)
        numbers = [n for n in range(STREAMS) for _ in range(EACH_NAME_TWICE)]
        answers = [threads.submit(create_until_answered, cluster, n) for n in numbers]
        answers[STREAMS // 3].result()
        cluster.nodes[first].stop(signal.SIGKILL)
        answers[2 * STREAMS // 3].result()
        cluster.start(first)
        ids: dict[str, set[str]] = {}
        for answer in answers:
            found = answer.result()
            ids.setdefault(found["name"], set()).add(found["id"])
        assert len(ids) == STREAMS
        assert all(len(each) == 1 for each in ids.values()), "both requests found one stream"

        def agree() -> bool | None:
            seen = [
                {each["name"]: {each["id"]} for each in node.call("GET", "/v1/streams")["streams"]}
                for node in cluster.alive()
            ]
            return True if all(each.items() >= ids.items() for each in seen) else None

        any_node = cluster.alive()[0]
        wait_for(agree, any_node.process, any_node.log)
        cluster.wait_in_sync("s0")
