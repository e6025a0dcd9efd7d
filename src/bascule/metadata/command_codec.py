"""Encodes commands for the log of the cluster, and images for its snapshots. MessagePack.

An entry of the log is `[request id, [[kind, fields by name], ...], last index]`: its commands take
effect together. The request id is empty, or 16 bytes that its sender draws once and repeats with
the request. Behind the last index the entry changes nothing; entries of earlier releases have none.
Fields that a later version adds have defaults, so older entries stay readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from bascule.errors import CorruptData
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
    PauseStream,
    RegisterNode,
    RemoveNode,
    ResumeStream,
    SetBalancing,
    SetCatchUpRate,
    SetClusterId,
    SetDrained,
    SetLeaving,
)
from bascule.metadata.image import Deletion, Image
from bascule.model import NodeRegistration, PartitionState, StreamDefinition

SNAPSHOT_VERSION: Final = 1
CHUNK_STREAMS: Final = 1_000
"""Streams in one chunk of a snapshot."""

_KINDS: Final[tuple[type[Command], ...]] = (
    CreateStream,
    AlterStream,
    PauseStream,
    ResumeStream,
    DeleteStream,
    ForgetDeletions,
    RegisterNode,
    FenceNode,
    ChangePartitions,
    SetClusterId,
    AdoptDeletions,
    AdmitNode,
    SetLeaving,
    RemoveNode,
    SetDrained,
    SetCatchUpRate,
    SetBalancing,
)
"""By number: only ever appended to."""
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}


class RequestId(NamedTuple):
    """What a request and its repetitions have in common."""

    id: bytes
    last_index: int
    """The last index of the log at which it may take effect; 0: any."""


NO_REQUEST: Final = RequestId(b"", 0)


class _Entry(msgspec.Struct, array_like=True):
    request_id: bytes
    commands: list[tuple[int, msgspec.Raw]]
    last_index: int = 0


class _Chunk(msgspec.Struct, kw_only=True):
    """A part of an image. The chunks of a snapshot are in order."""

    version: int
    cluster_id: str = ""
    streams: list[tuple[StreamDefinition, tuple[PartitionState, ...]]] = []
    deletions: list[tuple[bytes, Deletion]] = []
    nodes: list[NodeRegistration] = []
    requests: list[bytes] = []
    """Of an earlier release, which had no last indexes."""
    removed: list[int] = []
    remembered: list[RequestId] = []
    catch_up_rate: int = 0
    is_balancing: bool = False


_entry = msgspec.msgpack.Decoder(_Entry)
_chunk = msgspec.msgpack.Decoder(_Chunk)
_commands: Final[tuple[msgspec.msgpack.Decoder[Any], ...]] = tuple(
    msgspec.msgpack.Decoder(kind) for kind in _KINDS
)


def encode_commands(commands: Sequence[Command], *, request: RequestId = NO_REQUEST) -> bytes:
    """The payload of an entry of the log."""
    plain = [(_NUMBERS[type(each)], msgspec.Raw(msgspec.msgpack.encode(each))) for each in commands]
    return msgspec.msgpack.encode(_Entry(request.id, plain, request.last_index))


def decode_commands(payload: bytes) -> tuple[RequestId, list[Command]]:
    """The request and the commands of an entry. Raises: CorruptData."""
    try:
        entry = _entry.decode(payload)
        commands = [_commands[kind].decode(fields) for kind, fields in entry.commands]
    except (msgspec.MsgspecError, IndexError) as error:
        raise CorruptData("metadata log", 0, "commands", str(error)) from error
    return RequestId(entry.request_id, entry.last_index), commands


def encode_snapshot(image: Image, requests: Sequence[RequestId]) -> Iterator[bytes]:
    """The chunks of a snapshot: the same bytes on every node."""
    deletions = sorted(image.deletions.items())
    nodes = [node for _, node in sorted(image.nodes.items())]
    head = _Chunk(
        version=SNAPSHOT_VERSION,
        cluster_id=image.cluster_id,
        deletions=deletions,
        nodes=nodes,
        remembered=list(requests),
        removed=sorted(image.removed),
        catch_up_rate=image.catch_up_rate,
        is_balancing=image.is_balancing,
    )
    yield msgspec.msgpack.encode(head)
    for definitions in _by_id(image):
        for start in range(0, len(definitions), CHUNK_STREAMS):
            part = [
                (definition, image.partitions.get(definition.id, ()))
                for definition in definitions[start : start + CHUNK_STREAMS]
            ]
            yield msgspec.msgpack.encode(_Chunk(version=SNAPSHOT_VERSION, streams=part))


def _by_id(image: Image) -> Iterator[list[StreamDefinition]]:
    """The streams sorted by id, some at a time.

    One sort of all of them would keep every other thread of the process waiting: ids are random, so
    their first byte divides the streams into parts that are sorted in a millisecond.
    """
    parts: list[list[StreamDefinition]] = [[] for _ in range(256)]
    for definition in image.streams.values():
        parts[definition.id[0]].append(definition)
    merged: list[StreamDefinition] = []
    for part in parts:
        part.sort(key=attrgetter("id"))
        merged += part
        if len(merged) >= CHUNK_STREAMS:
            yield merged
            merged = []
    yield merged


def decode_snapshot(chunks: Sequence[bytes]) -> tuple[Image, tuple[RequestId, ...]]:
    """The image, and the requests that are remembered. Raises: CorruptData."""
    try:
        parts = [_chunk.decode(chunk) for chunk in chunks]
    except msgspec.MsgspecError as error:
        raise CorruptData("metadata snapshot", 0, "a part of an image", str(error)) from error
    for part in parts:
        if part.version != SNAPSHOT_VERSION:
            expected = f"version {SNAPSHOT_VERSION}"
            raise CorruptData("metadata snapshot", 0, expected, f"version {part.version}")
    streams = [item for part in parts for item in part.streams]
    image = Image.of(
        streams={definition.name: definition for definition, _ in streams},
        deletions=dict(pair for part in parts for pair in part.deletions),
        partitions={definition.id: states for definition, states in streams},
        cluster_id=next((part.cluster_id for part in parts if part.cluster_id), ""),
        nodes={node.node_id: node for part in parts for node in part.nodes},
        removed=frozenset(node for part in parts for node in part.removed),
        catch_up_rate=max((part.catch_up_rate for part in parts), default=0),
        is_balancing=any(part.is_balancing for part in parts),
    )
    earlier = (RequestId(id, 0) for part in parts for id in part.requests)
    return image, (*earlier, *(request for part in parts for request in part.remembered))
