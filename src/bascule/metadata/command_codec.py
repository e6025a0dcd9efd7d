"""Encodes commands for the log of the cluster, and images for its snapshots. MessagePack.

An entry of the log is `[request id, [[kind, fields by name], ...], last index]`: its commands take
effect together. The request id is empty, or 16 bytes that its sender draws once and repeats with
the request. Behind the last index the entry changes nothing; entries of earlier releases have none.
Fields that a later version adds have defaults, so older entries stay readable.

What a later cluster version adds is not written before that version is in force (`SINCE`): older
releases would pass over the fields, and then have another image. So at each version the bytes are
those that the oldest release writes which supports it, on every node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from bascule.cluster_version import NATS_LACKS, NEWEST
from bascule.errors import CorruptData, UnsupportedFormat
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
    SetClusterVersion,
    SetDrained,
    SetLeaving,
    SetNatsLack,
)
from bascule.metadata.image import Deletion, Image
from bascule.model import NodeRegistration, PartitionState, StreamConfig, StreamDefinition

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
    SetClusterVersion,
    SetNatsLack,
)
"""By number: only ever appended to. A new one is only decided on where its cluster version is in
force."""
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
    cluster_version: int = 1


SINCE: Final[Mapping[type, Mapping[str, int]]] = {
    _Chunk: {"cluster_version": 2},
    NodeRegistration: {"drain_reason": 2, "lacks_nats_since_ms": 2},
    SetDrained: {"reason": 2},
    StreamConfig: {"table": 2, "table_ttl_ms": 2},
    PartitionState: {"since": 2},
}
"""The fields of commands and snapshots that a cluster version has brought, and which one. Before
that version is in force they have their defaults, and are not written."""
COMMANDS_SINCE: Final[Mapping[type, int]] = {SetNatsLack: NATS_LACKS}
"""The commands that a cluster version has brought: earlier releases cannot read them."""
_LATEST: Final = max(since for names in SINCE.values() for since in names.values())

_entry = msgspec.msgpack.Decoder(_Entry)
_chunk = msgspec.msgpack.Decoder(_Chunk)
_commands: Final[tuple[msgspec.msgpack.Decoder[Any], ...]] = tuple(
    msgspec.msgpack.Decoder(kind) for kind in _KINDS
)


def encode_commands(
    commands: Sequence[Command], *, version: int, request: RequestId = NO_REQUEST
) -> bytes:
    """The payload of an entry of the log, in which the cluster version `version` is in force."""
    for each in commands:
        name, since = type(each).__name__, COMMANDS_SINCE.get(type(each), 1)
        assert since <= version, f"{name} before its cluster version"
    plain = [(_NUMBERS[type(each)], msgspec.Raw(_encode(each, version))) for each in commands]
    return msgspec.msgpack.encode(_Entry(request.id, plain, request.last_index))


def _encode(value: object, version: int) -> bytes:
    return msgspec.msgpack.encode(value if version >= _LATEST else _as_of(value, version))


def _as_of(value: Any, version: int) -> Any:
    """`value` as a map that lacks what later versions have brought; the bytes are the same else."""
    if isinstance(value, list | tuple):
        return [_as_of(each, version) for each in value]
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        defaults = dict(zip(reversed(names), reversed(value.__struct_defaults__), strict=False))
    elif hasattr(value, "__dataclass_fields__"):
        found = fields(value)
        names = tuple(each.name for each in found)
        defaults = {each.name: each.default for each in found if each.default is not MISSING}
    else:
        return value
    later = [name for name, since in SINCE.get(type(value), {}).items() if since > version]
    for name in later:
        assert getattr(value, name) == defaults[name], f"{name} before its cluster version"
    return {name: _as_of(getattr(value, name), version) for name in names if name not in later}


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
        cluster_version=image.cluster_version,
    )
    yield _encode(head, image.cluster_version)
    for definitions in _by_id(image):
        for start in range(0, len(definitions), CHUNK_STREAMS):
            part = [
                (definition, image.partitions.get(definition.id, ()))
                for definition in definitions[start : start + CHUNK_STREAMS]
            ]
            chunk = _Chunk(version=SNAPSHOT_VERSION, streams=part)
            yield _encode(chunk, image.cluster_version)


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
    """The image, and the requests that are remembered.

    Raises: CorruptData; UnsupportedFormat for a cluster version that this release does not support.
    """
    check_stored_version(_head_version(chunks))
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
        cluster_version=max((part.cluster_version for part in parts), default=1),
    )
    earlier = (RequestId(id, 0) for part in parts for id in part.requests)
    return image, (*earlier, *(request for part in parts for request in part.remembered))


def check_stored_version(version: int) -> None:
    """Raises: UnsupportedFormat where the metadata is of a cluster version that this release does
    not support: it has what this release cannot read."""
    if version > NEWEST:
        raise UnsupportedFormat("the metadata of the cluster", version, NEWEST)


class _Head(msgspec.Struct):
    """What every release can read of a snapshot."""

    cluster_version: int = 1


def _head_version(chunks: Sequence[bytes]) -> int:
    try:
        return msgspec.msgpack.decode(chunks[0], type=_Head).cluster_version if chunks else 1
    except msgspec.MsgspecError:
        return 1  # damaged: its decoder says so
