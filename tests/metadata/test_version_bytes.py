"""The bytes of metadata at cluster version 1 are those that its releases write.

`tests/vectors/metadata_version_1.json` was written by the first release that had cluster versions.
A node of it passes over fields that it does not know, and then has another image than the others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bascule.cluster_version import NATS_LACKS, NEWEST, REPLICAS_SINCE
from bascule.metadata import command_codec
from bascule.metadata.command_codec import (
    RequestId,
    decode_commands,
    decode_snapshot,
    encode_commands,
    encode_snapshot,
)
from bascule.metadata.commands import (
    AdmitNode,
    AdoptDeletions,
    AlterStream,
    ChangePartitions,
    Command,
    CreateStream,
    DeleteStream,
    FenceNode,
    ForgetDeletions,
    PartitionChange,
    PauseStream,
    RegisterNode,
    RemoveNode,
    ResumeStream,
    SetBalancing,
    SetCatchUpRate,
    SetClusterId,
    SetClusterVersion,
    SetDrained,
    SetLeaving,
    SetNatsLack,
)
from bascule.metadata.image import Deletion, Image
from bascule.model import NodeRegistration, PartitionState, StreamConfig, StreamDefinition

VECTORS = Path(__file__).parents[1] / "vectors" / "metadata_version_1.json"
ID = bytes(range(16))
NODE = NodeRegistration(
    1, "h:9093", "h:9092", "http://h:9080", "h:6222", "a", "0.1.0", 77, 5, True, "d1", False,
    False, True, True, 1, 2,
)  # fmt: skip
STATE = PartitionState((1, 2, 3), (1, 2), 1, 4, 9, 2, (1, 2), 1, (3,), (2,), 2, (1, 2, 3))
STREAM = StreamDefinition("s", ID, 1_700_000_000_000, StreamConfig("s.>", replicas=3), True)
COMMANDS: tuple[Command, ...] = (
    CreateStream(STREAM, (STATE,)),
    AlterStream("s", ID, STREAM.config, (STATE,)),
    PauseStream("s", ID),
    ResumeStream("s", ID),
    DeleteStream("s", ID),
    ForgetDeletions((ID,), 2),
    RegisterNode(NODE),
    FenceNode(1, 5),
    ChangePartitions((PartitionChange(ID, 0, STATE, "why"),)),
    SetClusterId("c"),
    AdoptDeletions(((ID, "s"),), 1),
    AdmitNode(NODE),
    SetLeaving(1, 5, True),
    RemoveNode(1, 5),
    SetDrained(1, 5, True, True),
    SetCatchUpRate(1_000),
    SetBalancing(True),
    SetClusterVersion(2),
)
LATER: tuple[Command, ...] = (SetNatsLack(1, 5, 1_700_000_000_000),)
"""Of cluster version 2."""
REQUEST = RequestId(bytes(16), 7)
IMAGE = Image.of(
    streams={"s": STREAM}, partitions={ID: (STATE,)}, deletions={bytes(16): Deletion("old", (1,))},
    cluster_id="c", nodes={1: NODE}, removed=frozenset({4}), catch_up_rate=1_000,
    is_balancing=True,
)  # fmt: skip


def version_1() -> dict[str, str]:
    """Name -> the bytes in hexadecimal."""
    made = {
        type(each).__name__: encode_commands([each], version=1, request=REQUEST).hex()
        for each in COMMANDS
    }
    for number, chunk in enumerate(encode_snapshot(IMAGE, (REQUEST,))):
        made[f"snapshot {number}"] = chunk.hex()
    return made


def test_the_bytes_of_version_1_are_what_they_were() -> None:
    assert version_1() == json.loads(VECTORS.read_text())


def test_every_command_has_its_bytes_here() -> None:
    assert tuple(type(each) for each in (*COMMANDS, *LATER)) == command_codec._KINDS


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
def test_what_is_written_at_a_version_is_read_again(version: int) -> None:
    for command in (*COMMANDS, *(LATER if version >= NATS_LACKS else ())):
        payload = encode_commands([command], version=version, request=REQUEST)
        assert decode_commands(payload) == (REQUEST, [command])
    image = replace(IMAGE, cluster_version=version)
    assert decode_snapshot(list(encode_snapshot(image, (REQUEST,)))) == (image, (REQUEST,))


def test_later_commands_are_not_written_before_their_version() -> None:
    for command in LATER:
        with pytest.raises(AssertionError, match="SetNatsLack before its cluster version"):
            encode_commands([command], version=1)


def test_which_version_made_a_node_a_replica_is_read_again() -> None:
    added = replace(STATE, since=((2, 7), (3, 9)))
    change = ChangePartitions((PartitionChange(ID, 0, added, "why"),))
    payload = encode_commands([change], version=REPLICAS_SINCE, request=REQUEST)
    assert decode_commands(payload) == (REQUEST, [change])
    image = Image.of(
        streams={"s": STREAM}, partitions={ID: (added,)}, cluster_version=REPLICAS_SINCE
    )
    assert decode_snapshot(list(encode_snapshot(image, ()))) == (image, ())
