"""Finds the founders of a cluster over the NATS that they share; see `announce.founders`.

The agreement is on the data directory and the address of each founder. It is kept in
`founders.json` in the data directory, and from then on it stands for `cluster.peers`: the founders
form the cluster as if they had been named (`node.founding`). A node goes on to answer founders that
have not heard of the decision, and nodes that are no founders.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import Final

import msgspec

from bascule.announce.founders import FounderAgreement, Refused
from bascule.config import Config
from bascule.config.addresses import format_address
from bascule.errors import ConfigError, CorruptData
from bascule.host.api import Clock, Files, Random
from bascule.ingest.nats_ingest import NatsIngest, OwnSubscription
from bascule.node.cluster_file import FILE_NAME as FOUNDING_FILE_NAME
from bascule.node.cluster_id import FILE_NAME as CLUSTER_ID_FILE_NAME
from bascule.publish.headers import HashKey
from bascule.storage.checkpoint import replace_file
from bascule.version import __version__
from bascule.wire.founding import (
    FOUNDING_BYTES_MAX,
    Founder,
    FounderAnnouncement,
    KeptPromise,
    decode_founder,
    encode_founder,
    founding_subject,
)

log = logging.getLogger("bascule.node")

FILE_NAME: Final = "founders.json"
DIRECTORY_BYTES: Final = 8
INTERVAL_SECONDS: Final = 0.5
"""Between announcements until the founders are decided, and for UNASKED more of them."""
UNASKED: Final = 10
LOG_SECONDS: Final = 10.0
"""Time between log lines of a node that waits."""
HEARD_MAX: Final = 256
"""Announcements that wait for the event loop; older ones are dropped, and said again."""
_USED: Final = (CLUSTER_ID_FILE_NAME, FOUNDING_FILE_NAME)
"""Files of a directory that a node has used; each node writes the first one at its start."""


class Discovery:
    """This node's part. Belongs to the event loop."""

    def __init__(
        self, config: Config, data: str, *, files: Files, clock: Clock, dice: Random
    ) -> None:
        self._config = config
        self._data = data
        self._path = f"{data}/{FILE_NAME}"
        self._files = files
        self._clock = clock
        self._dice = dice
        self._subject = founding_subject(config.cluster.name)
        self._loop = asyncio.get_running_loop()
        self._link: NatsIngest | None = None
        self._own: OwnSubscription | None = None
        self._heard: deque[bytes] = deque(maxlen=HEARD_MAX)
        self._woken = asyncio.Event()
        self._unasked = UNASKED
        self._task: asyncio.Task[None] | None = None
        self._decided: asyncio.Future[KeptPromise] = self._loop.create_future()
        self._logged_at = self._loop.time()
        self._strangers: set[str] = set()
        """Directories of other nodes with this node's number, which were logged."""

    async def found(self) -> Config:
        """The configuration with `cluster.peers`, once the founders are decided.

        Without `cluster.bootstrap_expect` it is the given one.
        Raises: ConfigError where this node cannot be a founder; CorruptData, NatsRefused, Broken,
        OSError.
        """
        if not self._config.cluster.bootstrap_expect:
            return self._config
        kept = await asyncio.to_thread(self._load)
        me = Founder(self._config.node_id, kept.directory, self._address())
        self._check_kept(me, kept)
        agreement = FounderAgreement(
            me, kept, expect=self._config.cluster.bootstrap_expect, now_ms=self._now_ms()
        )
        if kept.decided:
            self._decided.set_result(kept)
        await self._connect()
        self._task = asyncio.create_task(self._run(agreement))
        promise = (await self._decided).promise
        assert promise is not None
        peers = tuple(f"{each.node_id}@{each.peer}" for each in promise.founders)
        return replace(self._config, cluster=replace(self._config.cluster, peers=peers))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._link is not None:
            await self._link.drain()
            await self._link.close()

    # What is on the disk

    def _load(self) -> KeptPromise:
        """What the directory has; a new one gets its id."""
        if self._files.exists(self._path):
            try:
                return msgspec.json.decode(self._files.read_bytes(self._path), type=KeptPromise)
            except msgspec.MsgspecError as error:
                raise CorruptData(self._path, 0, "a promise as JSON", str(error)) from None
        if used := [name for name in _USED if self._files.exists(f"{self._data}/{name}")]:
            raise ConfigError(
                f"data directory {self._data} was used without --bootstrap-expect (it has "
                f"{used[0]} and no {FILE_NAME}): start the node as before, or name an empty "
                "directory with --data"
            )
        kept = KeptPromise(self._dice.bytes(DIRECTORY_BYTES).hex())
        self._store(kept)
        return kept

    def _store(self, kept: KeptPromise) -> None:
        replace_file(self._files, self._path, msgspec.json.encode(kept) + b"\n")

    def _check_kept(self, me: Founder, kept: KeptPromise) -> None:
        """Raises: ConfigError where this node has promised something else."""
        if kept.promise is None:
            return
        count = len(kept.promise.founders)
        if count != self._config.cluster.bootstrap_expect:
            raise ConfigError(
                f"{self._path} names {count} founders, and cluster.bootstrap_expect is "
                f"{self._config.cluster.bootstrap_expect}: start the node with {count}"
            )
        before = next(each for each in kept.promise.founders if each.directory == me.directory)
        if before.node_id != me.node_id:
            raise ConfigError(
                f"{self._path} is of node {before.node_id}, and this is node {me.node_id}: start "
                f"it with --node-id {before.node_id}"
            )
        if before.peer != me.peer:
            raise ConfigError(
                f"{self._path} says that other nodes find this one at {before.peer}, and it is at "
                f"{me.peer} now: start it there with --peer-port, or peer.advertised"
            )

    def _address(self) -> str:
        peer = self._config.peer
        return peer.advertised or format_address(peer.host, peer.port)

    # What it says and hears

    async def _connect(self) -> None:
        """Raises: NatsRefused, Broken, ConfigError."""
        self._link = NatsIngest(
            self._config,
            list(self._config.nats.urls),
            append=lambda *_: None,  # it has no streams
            clock=self._clock,
            random=self._dice,
            hash_key=HashKey(self._dice.bytes(16)),
            version=__version__,
        )
        await self._link.start()
        self._own = await self._link.listen(
            self._subject, self._on_message, bytes_max=FOUNDING_BYTES_MAX
        )

    def _on_message(self, payload: bytes) -> None:
        """Called by the reading thread."""
        self._heard.append(payload)
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            pass  # The loop is closed.

    async def _run(self, agreement: FounderAgreement) -> None:
        """Announce and listen. What fails before the decision fails `found`."""
        try:
            while True:
                await self._step(agreement)
                if self._unasked or not agreement.kept.decided:
                    self._announce(agreement)
                    self._unasked -= agreement.kept.decided
                pause = INTERVAL_SECONDS if self._unasked else None
                await self._wait(agreement, pause)
        except Exception as error:  # boundary: `found` raises it, or nobody waits for it any more
            if self._decided.done():
                log.exception("discovery of founders failed")
            else:
                self._decided.set_exception(error)

    async def _wait(self, agreement: FounderAgreement, seconds: float | None) -> None:
        """Handle what is heard for so long; without a time until somebody has to be answered."""
        until = None if seconds is None else self._loop.time() + seconds
        while True:
            try:
                async with asyncio.timeout_at(until):
                    await self._woken.wait()
            except TimeoutError:
                return
            self._woken.clear()
            if await self._step(agreement):
                self._unasked = max(self._unasked, 1)
                if until is None:
                    return

    async def _step(self, agreement: FounderAgreement) -> bool:
        """Handle what was heard, and store what has to be stored. Whether somebody who does not
        know of the decision has to be told of it."""
        is_asked = False
        while self._heard:
            said = decode_founder(self._heard.popleft())
            if said is not None:
                agreement.on_announcement(said, self._now_ms())
                self._note(agreement, said)
                is_asked |= not said.decided
        while (wanted := agreement.wanted(self._now_ms())) is not None:
            if isinstance(wanted, Refused):
                # It may have said nothing yet: who has its number is to hear of it.
                self._announce(agreement)
                raise ConfigError(wanted.text)
            await asyncio.to_thread(self._store, wanted)
            agreement.on_kept(wanted)
            self._log_kept(wanted)
            self._announce(agreement)
            if wanted.decided:
                self._decided.set_result(wanted)
        self._log_waiting(agreement)
        return is_asked and agreement.kept.decided

    def _announce(self, agreement: FounderAgreement) -> None:
        assert self._own is not None
        self._own.publish(encode_founder(agreement.announcement(self._now_ms())))

    def _note(self, agreement: FounderAgreement, said: FounderAnnouncement) -> None:
        other = said.founder
        if other.node_id != self._config.node_id or other.directory == agreement.kept.directory:
            return
        if other.directory not in self._strangers and len(self._strangers) < HEARD_MAX:
            self._strangers.add(other.directory)
            log.error(
                "another node has the number of this one",
                extra={
                    "node": other.node_id,
                    "peer": other.peer,
                    "own_peer": self._address(),
                    "directory": other.directory,
                },
            )

    def _log_kept(self, kept: KeptPromise) -> None:
        assert kept.promise is not None
        founders = [f"{each.node_id}@{each.peer}" for each in kept.promise.founders]
        log.info(
            "founders decided" if kept.decided else "founders promised",
            extra={"round": kept.promise.round, "founders": founders},
        )

    def _log_waiting(self, agreement: FounderAgreement) -> None:
        if agreement.kept.decided or self._loop.time() < self._logged_at + LOG_SECONDS:
            return
        self._logged_at = self._loop.time()
        assert self._own is not None
        log.info(
            "waiting for founders on nats",
            extra={
                "subject": self._subject,
                "waits_for": agreement.waits_for(self._now_ms()),
                "refused": " ".join(filter(None, self._own.refusals())),
            },
        )
        self._own.retry()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
