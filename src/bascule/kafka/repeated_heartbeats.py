"""Answers heartbeats that repeat an earlier one of their connection, while nothing has changed.

A member says the same thing every few seconds, and hears the same. What such a request says is
known from the one before, and so is its response. The group is asked each time.

Whatever is unusual is left to the handler, which also finds the errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bascule.groups.consumer import MemberAnswer
from bascule.kafka.handlers.context import Context
from bascule.kafka.handlers.membership.consumer_group_heartbeat import (
    heartbeat_response,
    member_heartbeat,
)
from bascule.wire.connection import ReceivedRequest, ServerConnection
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from bascule.wire.messages.group.heartbeat import HeartbeatRequest, HeartbeatResponse
from bascule.wire.schema import Message


class _Known:
    """What a group is asked for one request, the answer it gave, and the response."""

    __slots__ = ("answer", "ask", "head", "tail")

    def __init__(
        self,
        ask: Callable[[], ErrorCode | MemberAnswer | None],
        answer: ErrorCode | MemberAnswer,
        frame: bytes,
    ) -> None:
        self.ask = ask
        self.answer = answer
        self.head, self.tail = frame[:4], frame[8:]
        """The frame of the response before and behind the correlation id."""


class RepeatedHeartbeats:
    """Those of both protocols, of one connection. It knows one request."""

    def __init__(self, context: Context, protocol: ServerConnection) -> None:
        self._context = context
        self._protocol = protocol
        self._head = self._tail = b""
        """The request that is known, or that came last, before and behind its correlation id."""
        self._known: _Known | None = None
        self._learns = False
        """Whether the request that is decoded next is to be known."""

    def begin(self, frame: memoryview) -> bytes | None:
        """The response to a request that is known, if the group's answer is the same as ever."""
        self._learns = False
        said = bytes(frame)
        if said[8:] != self._tail or said[:4] != self._head:
            self._head, self._tail, self._known = said[:4], said[8:], None
            return None
        known = self._known
        if known is not None and known.ask() == known.answer:
            return known.head + said[4:8] + known.tail
        self._known, self._learns = None, True
        return None

    def on_decoded(self, request: ReceivedRequest) -> None:
        """Learn a request that has come twice."""
        if self._learns:
            self._learns = False
            self._known = self._learn(request)

    def _learn(self, received: ReceivedRequest) -> _Known | None:
        """None for a heartbeat that is refused, or tells the member something new."""
        message, groups = received.message, self._context.groups
        ask: Callable[[], ErrorCode | MemberAnswer | None]
        response: Message
        if isinstance(message, HeartbeatRequest):
            ask = partial(
                groups.heartbeat,
                message.group_id,
                message.member_id,
                message.group_instance_id,
                message.generation_id,
            )
            if ask():
                return None
            answer: ErrorCode | MemberAnswer = ErrorCode.NONE
            response = HeartbeatResponse(error_code=ErrorCode.NONE)
        else:
            assert isinstance(message, ConsumerGroupHeartbeatRequest)
            heartbeat = member_heartbeat(message, received.client_id, self._context)
            ask = partial(groups.steady_heartbeat, message.group_id, heartbeat)
            steady = ask()
            if not isinstance(steady, MemberAnswer):
                return None
            answer, response = steady, heartbeat_response(steady)
        (frame,) = self._protocol.send(received, response)
        assert isinstance(frame, bytes)
        return _Known(ask, answer, frame)
