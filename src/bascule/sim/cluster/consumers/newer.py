"""`SimNewerConsumer`: a consumer of the consumer protocol (KIP-848)."""

from __future__ import annotations

from typing import Final

from bascule.log_connection import LogConnection
from bascule.sim.cluster.consumers.consumer import REBALANCE_MS, RETRY_SECONDS, SimConsumer
from bascule.sim.cluster.world.threads import sleep
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
)

LEAVES: Final = -1
LEAVES_FOR_A_WHILE: Final = -2
"""As epochs."""
AGAIN: Final = (
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)
"""The cluster version is about to rise; the group is of another kind for a moment; or the process
before has not left, and its session is not over."""


class SimNewerConsumer(SimConsumer):
    """Its generation is its epoch: 0 to join."""

    def _forget_all(self) -> None:
        super()._forget_all()
        self.generation = 0
        self.positions = {}
        self._stream_id = b""
        self._says_all = True
        """Whether the coordinator may not know what the consumer is, as after a lost answer."""
        self._says_owned = False

    def _on_forgotten(self, code: int) -> None:
        self._give_up()
        self.generation, self._says_all = 0, True

    def _give_up(self) -> None:
        super()._give_up()
        self.positions = {}

    def _turn(self, connection: LogConnection) -> None:
        assert self.positions is not None
        if not self.id:
            self.id = f"{self.machine.node}-{self.world.prng.word():016x}"
        if self.generation and not self._handle_some(connection):
            return
        if self._leaves and self.generation:
            self._say_leave(connection)
            return
        joins = not self.generation
        if joins:
            self._history.on_cause()
        asked_ns = self.world.loop.now_ns
        answer = self._heartbeat(connection, says_all=self._says_all or joins)
        if answer.error_code in AGAIN:
            sleep(RETRY_SECONDS)
            return
        if not self._check(answer.error_code, "a heartbeat"):
            return
        self.generation, self._says_all, self._says_owned = answer.member_epoch, False, False
        self.rounds += 1
        if answer.assignment is None:
            self._on_well(asked_ns)
        else:
            assigned = {
                index for topic in answer.assignment.topic_partitions for index in topic.partitions
            }
            self._stream_id = next(
                (topic.topic_id for topic in answer.assignment.topic_partitions), self._stream_id
            )
            self._take_over(connection, assigned, asked_ns)

    def _heartbeat(
        self, connection: LogConnection, *, says_all: bool
    ) -> ConsumerGroupHeartbeatResponse:
        owned = None
        if says_all or self._says_owned:
            indexes = sorted(self.positions or ())
            owned = [GroupTopicPartitions(self._stream_id, indexes)] if indexes else []
        # Until an answer has come nobody knows what the coordinator knows.
        self._says_all = True
        return connection.request(
            ConsumerGroupHeartbeatRequest(
                group_id=self.plan.name,
                member_id=self.id,
                member_epoch=self.generation,
                instance_id=self.instance,
                rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
                subscribed_topic_names=[self.plan.stream] if says_all else None,
                topic_partitions=owned,
            )
        )

    def _take_over(self, connection: LogConnection, assigned: set[int], asked_ns: int) -> None:
        """Give up what is not assigned any more, and begin with what is new; `asked_ns` is when
        the heartbeat was sent that was answered with it."""
        assert self.positions is not None
        gone = [index for index in self.positions if index not in assigned]
        if not gone:
            # Else it is removed if it does not say soon that it has given these up.
            self._on_well(asked_ns)
        if gone and not self._commit(connection):
            return
        for index in gone:
            del self.positions[index]
        self._history.on_released(self.id, gone)
        new = sorted(assigned.difference(self.positions))
        if new:
            self._history.on_owned(self.id, new, asked_ns)
            # Until it has begun with them, it has to be told of them again.
            self._says_all = True
            found = self._begin(connection, new)
            if found is None:
                return
            self.positions |= found
            self._says_all = False
        if gone or new:
            owned = sorted(self.positions)
            self._note(f"consumer {self.id} has {owned} in epoch {self.generation}")
            self._says_owned = True

    def _say_leave(self, connection: LogConnection) -> None:
        self._note(f"consumer {self.id} leaves")
        left, self.generation = self.id, LEAVES if self.instance is None else LEAVES_FOR_A_WHILE
        self._history.on_leaving(left)
        self._heartbeat(connection, says_all=False)
        self._history.on_left(left)
        self._forget_all()
