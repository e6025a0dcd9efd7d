"""A nats-py client in a process of its own: it publishes while its server is away.

nats-py leaves sockets of refused attempts open; they end with the process. Each time the server is
lost, `COUNT` messages are published, which the client keeps until it is connected again.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import nats


async def main(url: str, count: int) -> None:
    async def publish() -> None:
        for _ in range(count):
            await client.publish("s.x", b"kept")
        print("published", flush=True)

    client = await nats.connect(
        url,
        reconnect_time_wait=0.01,
        max_reconnect_attempts=-1,
        disconnected_cb=publish,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print("connected", flush=True)
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
