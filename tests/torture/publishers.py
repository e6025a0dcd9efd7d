"""The publishers of a run, a process of their own: `python -m torture.publishers SETTINGS`.

Each publisher sends numbered messages with ids to one stream, by `nats-py` with a connection of its
own, and each message again until it is acked. Every ack is written to a file. Once a line comes on
standard input, nothing new is sent, and the process ends when everything is acked. Each 0.25 s a
line of JSON on standard output says how far they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from torture.messages import (
    SUBJECTS,
    AckFile,
    TorturedStream,
    key_of,
    publishers_of,
    streams_named,
    value_of,
)

ACK_SECONDS: Final = 2.0
"""After so long without an ack a message is sent again."""
REFUSED_SECONDS: Final = 0.2
"""After a refusal, or where nobody subscribes."""
WINDOW: Final = 256
"""Messages of a publisher without ack."""
TICK_SECONDS: Final = 0.01
REPORT_SECONDS: Final = 0.25


class _Waiting:
    """A message without ack."""

    __slots__ = ("connection", "due", "sent", "times")

    def __init__(self, now: float, connection: int) -> None:
        self.sent = now
        self.connection = connection
        self.times = 0
        self.due = 0.0


class Publisher:
    """One publisher."""

    def __init__(self, number: int, stream: TorturedStream, url: str, acks: AckFile) -> None:
        self.number = number
        self.stream = stream
        self.acked = 0
        self.refusals: Counter[str] = Counter()
        self.waiting: dict[int, _Waiting] = {}
        self._url = url
        self._acks = acks
        self._next = 0
        self._places: dict[int, tuple[int, int]] = {}
        self._connection = 1
        self._client = Client()
        self._inbox = ""

    async def connect(self) -> None:
        async def on_reconnected() -> None:
            self._connection += 1
            for each in self.waiting.values():
                each.due = 0.0

        async def on_error(_: Exception) -> None:
            """`nats-py` connects again by itself."""

        await self._client.connect(
            self._url,
            reconnected_cb=on_reconnected,
            error_cb=on_error,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            connect_timeout=5,
            ping_interval=5,
        )
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply, pending_msgs_limit=-1)

    async def send_due(self, now: float, allowance: int) -> int:
        """Send again what is due, and up to `allowance` new messages; how many new ones."""
        if not self._client.is_connected:
            return 0
        for number, waiting in self.waiting.items():
            if waiting.due <= now and not await self._send(number, waiting, now):
                return 0
        count = min(allowance, WINDOW - len(self.waiting))
        for sent in range(count):
            waiting = _Waiting(now, self._connection)
            self.waiting[self._next] = waiting
            self._next += 1
            if not await self._send(self._next - 1, waiting, now):
                return sent
        return max(0, count)

    async def _send(self, number: int, waiting: _Waiting, now: float) -> bool:
        waiting.times += 1
        waiting.due = now + ACK_SECONDS
        publisher = self.number
        headers = {
            "Nats-Msg-Id": f"{publisher}.{number}",
            "Bascule-Key": key_of(publisher, number).decode(),
        }
        try:
            await self._client.publish(
                f"{self.stream.name}.{number % SUBJECTS}",
                value_of(publisher, number),
                reply=f"{self._inbox}.{number}",
                headers=headers,
            )
        except nats.errors.Error:
            waiting.due = now + REFUSED_SECONDS
            return False
        return True

    async def _on_reply(self, message: Msg) -> None:
        now = time.monotonic()
        number = int(message.subject.rsplit(".", 1)[1])
        waiting = self.waiting.get(number)
        if not message.data:
            self._refuse(waiting, "nobody subscribes", now)
            return
        reply = json.loads(message.data)
        if error := reply.get("error"):
            self._refuse(waiting, f"{error['err_code']} {error['description']}", now)
            return
        place = int(reply["partition"]), int(reply["offset"])
        if waiting is None:
            if self._places.get(number, place) != place:
                self._acks.add(now, now, number, place[1], self.number, place[0], 0, 0, 0, 1)
            return
        del self.waiting[number]
        self.acked += 1
        if waiting.times > 1:
            self._places[number] = place
        self._acks.add(
            waiting.sent, now, number, place[1], self.number, place[0], waiting.times,
            waiting.connection, int(reply.get("replicas", 0)), 0,
        )  # fmt: skip

    def _refuse(self, waiting: _Waiting | None, why: str, now: float) -> None:
        self.refusals[f"{self.stream.name}: {why}"] += 1
        if waiting is not None:
            waiting.due = now + REFUSED_SECONDS

    async def close(self) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.close()


class Load:
    """All publishers of a run."""

    def __init__(
        self, url: str, rate: float, acks: Path, streams: Sequence[TorturedStream]
    ) -> None:
        """`rate`: new messages a second, of all publishers together."""
        self._acks = AckFile(acks)
        self._rate = rate
        self._stopping = asyncio.Event()
        self.publishers = [
            Publisher(number, stream, url, self._acks)
            for number, stream in enumerate(publishers_of(streams))
        ]

    async def run(self) -> None:
        await asyncio.gather(*(each.connect() for each in self.publishers))
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._stopping.set)
        reporting = asyncio.create_task(self._report())
        try:
            await asyncio.gather(*(self._publish(each) for each in self.publishers))
        finally:
            reporting.cancel()
            self._acks.close()
            await asyncio.gather(*(each.close() for each in self.publishers))
            self._say()

    async def _publish(self, publisher: Publisher) -> None:
        share = self._rate / len(self.publishers)
        before, due = time.monotonic(), 0.0
        while not self._stopping.is_set() or publisher.waiting:
            now = time.monotonic()
            due = min(due + (now - before) * share, WINDOW)
            before = now
            allowance = 0 if self._stopping.is_set() else int(due)
            due -= await publisher.send_due(now, allowance)
            await asyncio.sleep(TICK_SECONDS)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._acks.flush()
            self._say()

    def _say(self) -> None:
        now = time.monotonic()
        state: dict[str, Any] = {
            "acked": {str(each.number): each.acked for each in self.publishers},
            "waiting": sum(len(each.waiting) for each in self.publishers),
            "oldest_s": max(
                (now - w.sent for each in self.publishers for w in each.waiting.values()),
                default=0.0,
            ),
            "refusals": dict(sum((each.refusals for each in self.publishers), Counter())),
        }
        print(json.dumps(state), flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    logging.disable()
    streams = streams_named(settings["streams"])
    load = Load(settings["nats"], settings["rate"], Path(settings["acks"]), streams)
    asyncio.run(load.run())


if __name__ == "__main__":
    main()
