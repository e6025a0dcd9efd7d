"""Messages, writes, applies and answers as compact text, for the transcripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bascule.raft.effects import Answer, Apply, Ready, RequestOutcome, Role, Write
from bascule.raft.membership import Members, decode_members
from bascule.raft.messages import (
    AnyMessage,
    AppendReply,
    AppendRequest,
    Chunk,
    ChunkReply,
    ChunkRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    SnapshotOffer,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.raft.node import RaftNode

FILLER = b"."
"""Pads a payload to a given size."""
AT_INDEX = (RequestOutcome.COMMITTED, RequestOutcome.READABLE, RequestOutcome.INDETERMINATE)
SHOWN_ENTRIES_MAX = 12
"""Of more entries only the first two and the last are shown."""


def payload_text(payload: bytes) -> str:
    name = payload.rstrip(FILLER)
    filled = f"({len(payload)} B)" if len(name) < len(payload) else ""
    return name.decode() + filled


def members_text(members: Members) -> str:
    text = " ".join(map(str, members.voters)) or "nobody"
    if members.learners:
        text += ", learners " + " ".join(map(str, members.learners))
    return text


def entry_text(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.NO_OP:
            what = "no-op"
        case EntryKind.MEMBERS:
            what = f"members {members_text(decode_members(entry.payload))}"
        case _:
            what = payload_text(entry.payload)
    return f"{entry.index}/{entry.term} {what}"


def entries_text(entries: Iterable[Entry]) -> str:
    texts = list(map(entry_text, entries))
    if len(texts) > SHOWN_ENTRIES_MAX:
        return f"[{texts[0]}, {texts[1]} .. {texts[-1]}]"
    return f"[{', '.join(texts)}]"


def message_text(message: AnyMessage) -> str:
    """`source->target type term fields`, as `1->2 vote yes t2`."""
    head = f"{message.source}->{message.target} "
    term = f"t{message.term}"
    match message:
        case VoteRequest(pre=pre, last_index=index, last_term=last_term, forced=forced):
            text = f"{'pre-vote?' if pre else 'vote?'} {term} last {index}/{last_term}"
            text += " forced" if forced else ""
        case VoteReply(pre=pre, granted=granted):
            text = f"{'pre-vote' if pre else 'vote'} {'yes' if granted else 'no'} {term}"
            if message.removed_at:
                text += f" removed at {message.removed_at}"
        case AppendRequest(previous_index=index, previous_term=previous, entries=entries):
            text = f"append {term} after {index}/{previous} {entries_text(entries)}"
            text += f" commit {message.commit}"
        case AppendReply(matched=True, index=index):
            text = f"matched {term} {index}"
        case AppendReply(index=index, hint_index=hint, hint_term=hint_term):
            text = f"refused {term} {index} try {hint}/{hint_term}"
        case Heartbeat(commit=commit, round=number):
            text = f"heartbeat {term} round {number} commit {commit}"
        case HeartbeatReply(round=number):
            text = f"heartbeat-reply {term} round {number}"
        case TimeoutNow():
            text = f"timeout-now {term}"
        case SnapshotOffer(index=index, index_term=of, sources=sources):
            text = f"snapshot-offer {term} snapshot {index}/{of} chunks {len(message.checksums)}"
            text += f" members {members_text(message.members)} from {' '.join(map(str, sources))}"
        case SnapshotReply(index=index):
            text = f"snapshot-reply {term} {index}"
        case ChunkRequest(index=index, number=number):
            text = f"chunk? {term} {index}#{number}"
        case ChunkReply(index=index, number=number, data=data):
            text = f"chunk {term} {index}#{number} {data_text(data)}"
    return head + text


def data_text(data: bytes | None) -> str:
    return "none" if data is None else f'"{data.decode()}"'


def chunk_text(chunk: Chunk) -> str:
    return f"{chunk.index}#{chunk.number} {data_text(chunk.data)}"


def state_text(node: RaftNode) -> str:
    """`node role term of leader commit`, as `1 follower t2 of 3 commit 4`."""
    of = f" of {node.leader}" if node.role is Role.FOLLOWER and node.leader else ""
    return f"{node.id} {node.role.value} t{node.term}{of} commit {node.commit}"


def write_text(write: Write) -> Iterator[str]:
    parts = []
    if write.vote is not None:
        term, voted_for = write.vote
        parts.append(f"term {term} vote {voted_for or 'nobody'}")
    if write.truncate_from:
        parts.append(f"truncate from {write.truncate_from}")
    if write.entries:
        parts.append(entries_text(write.entries))
    if write.chunks:
        parts.append("chunks " + ", ".join(map(chunk_text, write.chunks)))
    if write.truncate_until:
        parts.append(f"truncate until {write.truncate_until}")
    parts += [f"delete {count} chunks of {index}" for index, count in write.delete_chunks]
    parts.append("sync" if write.sync else "no sync")
    yield f"write {write.number}: {'; '.join(parts)}"
    for message in write.then_send:
        yield f"  then {message_text(message)}"


def apply_text(apply: Apply) -> str:
    if apply.restore is not None:
        snapshot = apply.restore
        return f"apply snapshot {snapshot.index}: {' '.join(map(data_text, snapshot.chunks))}"
    text = f"apply {entries_text(apply.entries)}"
    return f"{text} and take snapshot {apply.last}" if apply.take_snapshot else text


def answer_text(name: str, answer: Answer) -> str:
    text = f"answer {name}: {answer.outcome.value}"
    if answer.outcome in AT_INDEX and answer.index:
        text += f" at {answer.index}"
    if answer.outcome is RequestOutcome.NOT_LEADER:
        text += f", {answer.leader} leads" if answer.leader else ", nobody is known to lead"
    return text


def ready_text(ready: Ready, names: dict[int, str]) -> Iterator[str]:
    """One line for each effect; `names` are the names of the tickets."""
    for message in ready.send:
        yield f"send {message_text(message)}"
    if ready.write is not None:
        yield from write_text(ready.write)
    for answer in ready.answers:
        yield answer_text(names[answer.ticket], answer)
    if ready.apply is not None:
        yield apply_text(ready.apply)
