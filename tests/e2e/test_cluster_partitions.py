"""A stream gets partitions in a running cluster: each message is stored once, in one of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count

import nats
import pytest
from nats.aio.msg import Msg

import bascule
from support.cluster_commands import run
from support.clusters import RunningCluster, running_cluster
from support.processes import WAIT_SECONDS_MAX, NatsServer

pytestmark = pytest.mark.tier3

SENT = 120
ROUND_SECONDS_MAX = 5
"""For the acks of one round; most come at once."""


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("more"), nats=nats_server.url) as running:
        yield running


async def send_once(url: str, name: str, number: int) -> Counter[str]:
    """Publish each message of a round once, without repetitions, and count the acks of each."""
    acks: Counter[str] = Counter()
    are_there = asyncio.Event()
    connection = await nats.connect(url)

    async def on_ack(message: Msg) -> None:
        acks[message.subject.rpartition(".")[2]] += 1
        if len(acks) == SENT:
            are_there.set()

    inbox = connection.new_inbox()
    await connection.subscribe(f"{inbox}.*", cb=on_ack)
    for each in range(SENT):
        value = f"{number}-{each}".encode()
        headers = {"Nats-Msg-Id": value.decode()}
        subject, reply = f"{name}.{each}", f"{inbox}.{each}"
        await connection.publish(subject, value, reply=reply, headers=headers)
    try:
        async with asyncio.timeout(ROUND_SECONDS_MAX):
            await are_there.wait()
    except TimeoutError:
        pass  # the counts say it
    await connection.close()
    return acks


async def stored(server: str, name: str, number: int) -> Counter[bytes]:
    """How often each message of a round is in the stream."""
    async with bascule.connect(server) as client:
        found = Counter([each.value async for each in client.read(name)])
    return Counter({at: n for at, n in found.items() if at.startswith(b"%d-" % number)})


@pytest.mark.parametrize("by", ["group", "subject", "key"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 4)])
def test_leaders_of_former_partitions_take_the_new_ones_into_account(
    cluster: RunningCluster, nats_server: NatsServer, by: str, before: int, after: int
) -> None:
    """A round that begins while nodes still hear of the change may have losses and doubles."""
    name, first = f"{by}{before}", cluster.nodes[1]
    first.create(name, f"{name}.>", replicas=3, partitions=before, partition_by=by)
    cluster.wait_in_sync(name)
    done = run(cluster, "stream", "alter", name, "--partitions", str(after), "--yes")
    assert done.returncode == 0, done.stderr
    cluster.wait_in_sync(name)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    for number in count():
        acks = asyncio.run(send_once(nats_server.url, name, number))
        found = asyncio.run(stored(first.addresses["http"], name, number))
        if list(acks.values()) == list(found.values()) == [1] * SENT:
            break
        assert time.monotonic() < deadline, f"acks {acks}, stored {found}"
