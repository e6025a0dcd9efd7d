"""A replicated key-value store on `bascule.raft`, in three processes.

    P=1=127.0.0.1:7001,2=127.0.0.1:7002,3=127.0.0.1:7003
    python examples/raft_kv.py --id 1 --peers $P --client 127.0.0.1:8001 --data /tmp/kv1
    ... and the same for 2 and 3

Clients send lines, for example with `nc 127.0.0.1 8001`. The first word of a request is the
command, the first word of the answer its outcome: `ok`, `none`, `differs`; `not-leader N` (ask node
N), `again` (it has no effect, try again), `unknown` (it may take effect or not), `error`.

    put KEY VALUE          append KEY VALUE       cas KEY OLD NEW (no spaces in OLD)
    get KEY                linearizable; `local KEY` reads the state of this node
    members                add-learner N HOST:PORT, add-voter N HOST:PORT, remove N
    transfer N             report

Start a node that joins later with --join and the peers that it knows; then a client adds it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from bascule.cli.logs import set_up_logging
from bascule.config import LoggingConfig
from bascule.errors import BasculeError, CannotReplicate, Indeterminate, LaggingIndex, NotLeader
from bascule.raft.config import RaftConfig
from bascule.raft.effects import ReadPolicy
from bascule.raft.membership import MemberChange, Members
from bascule.raft.messages import Entry, RaftSnapshot
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.raft_driver.group import RaftGroup

CHANGES = {
    "add-learner": MemberChange.ADD_LEARNER,
    "add-voter": MemberChange.ADD_VOTER,
    "remove": MemberChange.REMOVE,
}
WRITES = {"put": 2, "append": 2, "cas": 3, "address": 2}
CHUNK_ITEMS = 5_000
TIMEOUT_S = 5.0


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


class KeyValue:
    """The state machine: its state depends on the entries alone."""

    def __init__(self, on_address: Callable[[int, str], None]) -> None:
        self.values: dict[str, str] = {}
        self.addresses: dict[str, str] = {}
        self._on_address = on_address

    def apply(self, entries: Sequence[Entry]) -> list[str]:
        return [self._do(*msgspec.msgpack.decode(entry.payload)) for entry in entries]

    def _do(self, what: str, key: str, *rest: str) -> str:
        if what == "put":
            self.values[key] = rest[0]
        elif what == "append":
            self.values[key] = f"{self.values.get(key, '')} {rest[0]}".lstrip()
        elif what == "cas":
            if (found := self.values.get(key, "-")) != rest[0]:
                return f"differs {found}"
            self.values[key] = rest[1]
        elif what == "address":
            self.addresses[key] = rest[0]
            self._on_address(int(key), rest[0])
        return "ok"

    def take_snapshot(self) -> Iterator[bytes]:
        """Consumed on another thread; the driver applies nothing meanwhile."""
        yield msgspec.msgpack.encode(sorted(self.addresses.items()))
        items = sorted(self.values.items())
        for start in range(0, len(items), CHUNK_ITEMS):
            yield msgspec.msgpack.encode(items[start : start + CHUNK_ITEMS])

    def restore(self, snapshot: RaftSnapshot) -> None:
        first, *others = (msgspec.msgpack.decode(chunk) for chunk in snapshot.chunks)
        self.addresses = dict(first)
        self.values = {key: value for items in others for key, value in items}
        for node, address in self.addresses.items():
            self._on_address(int(node), address)


class Server:
    """Handles the lines of clients."""

    def __init__(self, driver: RaftDriver, group: RaftGroup, machine: KeyValue) -> None:
        self.driver, self.group, self.machine = driver, group, machine
        leases = driver.config.lease_reads
        self.policy = ReadPolicy.LEASE if leases else ReadPolicy.LINEARIZABLE

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write((await self.answer(line.decode().split()) + "\n").encode())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def answer(self, words: list[str]) -> str:
        try:
            return await self.carry_out(words)
        except NotLeader as error:
            return f"not-leader {error.leader or 0}"
        except (CannotReplicate, LaggingIndex) as error:
            return f"again {error}"
        except Indeterminate as error:
            return f"unknown {error}"
        except (BasculeError, ValueError, IndexError) as error:
            return f"error {error}"

    async def carry_out(self, words: list[str]) -> str:
        what, arguments = words[0], words[1:]
        if what in WRITES:
            *first, last = (
                what,
                *arguments[: WRITES[what] - 1],
                " ".join(arguments[WRITES[what] - 1 :]),
            )
            return str(await self.propose(*first, last))
        if what in ("get", "local"):
            if what == "get":
                await self.group.read(self.policy, timeout_s=TIMEOUT_S)
            value = self.machine.values.get(arguments[0])
            return "none" if value is None else f"ok {value}"
        if what in CHANGES:
            if what != "remove":
                await self.propose("address", *arguments[:2])
            node = int(arguments[0])
            index = await self.group.change_members(CHANGES[what], node, timeout_s=TIMEOUT_S)
            return f"ok {index}"
        if what == "transfer":
            await self.group.transfer(int(arguments[0]))
            return f"ok {self.group.leader}"
        if what in ("members", "report"):
            report: Any = self.group.members if what == "members" else self.group.report()
            return f"{what} " + msgspec.json.encode(report).decode()
        return f"error unknown command {what!r}"

    async def propose(self, *words: str) -> Any:
        payload = msgspec.msgpack.encode(words)
        return (await self.group.propose(payload, timeout_s=TIMEOUT_S)).result


async def transfer_leadership(group: RaftGroup) -> None:
    """Transfer leadership before a stop, so that the group waits for no election timeout."""
    voters = [f for f in group.report().followers if f.node in group.members.voters]
    if group.is_leader and voters:
        try:
            await group.transfer(max(voters, key=lambda found: found.match).node)
        except BasculeError:
            logging.getLogger("raft_kv").warning("leadership was not transferred")


async def run(options: argparse.Namespace) -> None:
    peers = {int(k): address_of(v) for k, v in (x.split("=") for x in options.peers.split(","))}
    driver = RaftDriver(
        options.id,
        DriverSettings(cluster=options.cluster, tick_ms=options.tick_ms),
        config=RaftConfig(
            commit_count_to_take_snapshot=options.commit_count, lease_reads=options.lease
        ),
    )
    await driver.start(directory=options.data, listen=peers[options.id], peers=peers)
    machine = KeyValue(lambda node, address: driver.transport.set_peer(node, address_of(address)))
    initial_members = None if options.join else Members.of(*peers)
    group = await driver.open_group(1, machine, initial_members=initial_members)
    server = Server(driver, group, machine)
    clients = await asyncio.start_server(server.serve, *address_of(options.client))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), driver.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    clients.close()
    await transfer_leadership(group)
    await driver.stop()
    if driver.failed.done():
        sys.exit(f"failed: {driver.failed.result()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--id", type=int, required=True)
    parser.add_argument("--peers", required=True, help="N=HOST:PORT,... of all nodes, this one too")
    parser.add_argument("--client", default="127.0.0.1:0", help="HOST:PORT for clients")
    parser.add_argument("--data", required=True, help="directory of this node")
    parser.add_argument("--join", action="store_true", help="wait to be added by the leader")
    parser.add_argument("--cluster", default="raft-kv")
    parser.add_argument("--lease", action="store_true", help="read by the leader's lease")
    parser.add_argument("--tick-ms", type=int, default=50)
    parser.add_argument("--commit-count", type=int, default=10_000, help="entries to a snapshot")
    set_up_logging(LoggingConfig())
    try:
        asyncio.run(run(parser.parse_args()))
    except BasculeError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
