"""Answers commits of offsets that repeat an earlier one of their connection but for the offsets.

Members commit the same partitions again and again. What such a request says is known from the one
before: whom it is of, the keys of its records, and its response. What changes meanwhile is checked
each time: the membership, the streams, and what the store of the offsets checks.

Whatever is unusual is left to the handler, which also finds the errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bascule.errors import BasculeError
from bascule.groups.prepared_commits import PreparedCommit
from bascule.kafka.handlers.context import Context, ServedPartition, find_stream
from bascule.kafka.handlers.offset_commit import failed_commit, partition_error
from bascule.listening.connection import Answer
from bascule.wire._hot_commits import split_commit
from bascule.wire.connection import ReceivedRequest, ServerConnection
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopicResponse,
)
from bascule.wire.offsets import OffsetKey, check_consumer
from bascule.wire.schema import NO_ID


class _Learned:
    """What a request says but for its offsets, and its response."""

    __slots__ = ("_topics", "generation", "group", "head", "instance_id", "member_id", "prepared",
                 "streams", "tail")  # fmt: skip

    def __init__(
        self,
        request: OffsetCommitRequest,
        prepared: list[PreparedCommit],
        streams: list[tuple[str, bytes, tuple[ServedPartition, ...]]],
    ) -> None:
        self._topics = [
            (t.name, t.topic_id, [p.partition_index for p in t.partitions]) for t in request.topics
        ]
        self.group = request.group_id
        self.member_id = request.member_id
        self.instance_id = request.group_instance_id
        self.generation = request.generation_id_or_member_epoch
        self.prepared = prepared
        self.streams = streams
        """Name, id and partitions of each topic."""
        self.head = self.tail = b""
        """The frame of the response before and behind the correlation id."""

    def response(self) -> OffsetCommitResponse:
        """A new one, without errors."""
        return OffsetCommitResponse(
            topics=[
                OffsetCommitTopicResponse(
                    name, id, [OffsetCommitPartitionResponse(index, 0) for index in indices]
                )
                for name, id, indices in self._topics
            ]
        )


class RepeatedCommits:
    """Those of one connection. It knows one request."""

    def __init__(self, context: Context, protocol: ServerConnection) -> None:
        self._context = context
        self._partitions = context.partitions
        self._offsets = context.offsets
        self._commit_error = context.groups.commit_error
        self._protocol = protocol
        self._form = b""
        """Of the request that is known, or that came last."""
        self._learned: _Learned | None = None
        self._learns = False
        """Whether the request that is decoded next is to be known."""
        self._correlation_id = b""
        self._on_answer: Callable[[Answer], None] = _answer_nobody

    def begin(self, frame: memoryview, on_answer: Callable[[Answer], None]) -> bool:
        """Store the commits of a request that is known; see `Shortcut`."""
        self._learns = False
        split = split_commit(frame)
        if split is None:
            return False
        form, values = split
        learned = self._learned
        if form != self._form:
            self._form, self._learned = form, None
            return False
        if learned is None or not self._is_current(learned) or min(values[::2]) < 0:
            self._learns = learned is None
            self._learned = None
            return False
        if self._commit_error(
            learned.group, learned.member_id, learned.instance_id, learned.generation
        ):
            return False
        try:
            self._offsets.store_prepared(learned.prepared, values, self._on_stored)
        except BasculeError:
            return False
        self._correlation_id = bytes(frame[4:8])
        self._on_answer = on_answer
        return True

    def _is_current(self, learned: _Learned) -> bool:
        """Whether the streams are those of the request that was learned."""
        for name, id, stream in learned.streams:
            by_name = id == NO_ID
            found = self._partitions.stream(name) if by_name else self._partitions.stream_by_id(id)
            if found is not stream or found[0].deleted:
                return False
        return True

    def on_decoded(self, request: ReceivedRequest) -> None:
        """Learn a request that has come twice."""
        if not self._learns or not isinstance(request.message, OffsetCommitRequest):
            return
        self._learns = False
        self._learned = self._learn(request, request.message)

    def _learn(self, received: ReceivedRequest, request: OffsetCommitRequest) -> _Learned | None:
        """None for a request that is refused in part, or names a partition twice."""
        commits: dict[OffsetKey, str] = {}
        count, streams = 0, []
        try:
            check_consumer(request.group_id)
            for topic in request.topics:
                stream, error = find_stream(self._context, name=topic.name, id=topic.topic_id)
                for each in topic.partitions:
                    if error or partition_error(each, len(stream)):
                        return None
                    key = OffsetKey(
                        request.group_id, stream[0].definition.name, each.partition_index
                    )
                    commits[key] = each.committed_metadata or ""
                    count += 1
                streams.append((topic.name, topic.topic_id, stream))
            if not count or count != len(commits):
                return None
            prepared = self._offsets.prepare(list(commits.items()))
        except BasculeError:
            return None
        learned = _Learned(request, prepared, streams)
        (frame,) = self._protocol.send(received, learned.response())
        assert isinstance(frame, bytes)
        learned.head, learned.tail = frame[:4], frame[8:]
        return learned

    def _on_stored(self, offset: int, error: BaseException | None) -> None:
        """The commits of the request are stored, or are not."""
        learned, on_answer = self._learned, self._on_answer
        assert learned is not None
        if error is None and self._offsets.has_read(offset, len(learned.prepared)):
            on_answer(learned.head + self._correlation_id + learned.tail)
        elif error is None:
            on_answer(self._read(learned, offset))
        elif isinstance(error, asyncio.CancelledError):
            on_answer(None)
        else:
            assert isinstance(error, BasculeError)
            on_answer(failed_commit(learned.response(), learned.group, error))

    async def _read(self, learned: _Learned, offset: int) -> OffsetCommitResponse:
        response = learned.response()
        try:
            await self._offsets.wait_read(offset, len(learned.prepared))
        except BasculeError as error:
            return failed_commit(response, learned.group, error)
        return response


def _answer_nobody(_: Answer) -> None:
    raise AssertionError("no request is answered")
