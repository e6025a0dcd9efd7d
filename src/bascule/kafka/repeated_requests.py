"""The shortcut of a client's connection: requests that members of groups send again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bascule.kafka.handlers.context import Context
from bascule.kafka.repeated_commits import RepeatedCommits
from bascule.kafka.repeated_heartbeats import RepeatedHeartbeats
from bascule.listening.connection import SHORTCUT_BYTES_MAX, Answer
from bascule.wire.connection import ReceivedRequest, ServerConnection
from bascule.wire.messages.group.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.offset_commit import OffsetCommitRequest

HEAD_BYTES: Final = 8
"""API key, version and correlation id."""
COMMIT: Final = OffsetCommitRequest.API_KEY
HEARTBEATS: Final = {
    HeartbeatRequest.API_KEY: "Heartbeat",
    ConsumerGroupHeartbeatRequest.API_KEY: "ConsumerGroupHeartbeat",
}
"""API key -> name, as it is counted."""


class RepeatedRequests:
    """See `listening.connection.Shortcut`. A connection without such requests has nothing here."""

    def __init__(self, context: Context, protocol: ServerConnection) -> None:
        self.name = ""
        self._context = context
        self._protocol = protocol
        self._commits: RepeatedCommits | None = None
        self._heartbeats: RepeatedHeartbeats | None = None
        self._asked: RepeatedCommits | RepeatedHeartbeats | None = None
        """Who has refused the request that is decoded next."""

    def begin(self, frame: memoryview, on_answer: Callable[[Answer], None]) -> bool | bytes:
        """Answer a request that is known."""
        self._asked = None
        if not HEAD_BYTES <= len(frame) <= SHORTCUT_BYTES_MAX:
            return False
        key = frame[0] << 8 | frame[1]
        if key == COMMIT:
            commits = self._commits
            if commits is None:
                commits = self._commits = RepeatedCommits(self._context, self._protocol)
            if commits.begin(frame, on_answer):
                self.name = "OffsetCommit"
                return True
            self._asked = commits
        elif (name := HEARTBEATS.get(key)) is not None:
            heartbeats = self._heartbeats
            if heartbeats is None:
                heartbeats = RepeatedHeartbeats(self._context, self._protocol)
                self._heartbeats = heartbeats
            response = heartbeats.begin(frame)
            if response is not None:
                self.name = name
                return response
            self._asked = heartbeats
        return False

    def on_decoded(self, request: ReceivedRequest) -> None:
        """See `Shortcut`."""
        asked = self._asked
        if asked is not None:
            self._asked = None
            asked.on_decoded(request)
