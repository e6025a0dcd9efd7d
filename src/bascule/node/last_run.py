"""`last-run.json` in the data directory: whether what was not synced may be lost.

The kernel keeps what a killed process has written, until the machine goes down. So the file has the
boot id of the kernel under which the node runs, and whether it has stopped cleanly, with every log
synced. Under another boot id, without a clean stop, writes that were not synced are lost. The file
says so until the controller knows it: a start that fails before changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage.checkpoint import replace_file

log = logging.getLogger("bascule.node")

FILE_NAME: Final = "last-run.json"
BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"
"""On Linux: drawn by the kernel at each start of the machine."""


class LastRun(msgspec.Struct, frozen=True):
    """The content of the file."""

    boot_id: str = ""
    """Of the kernel under which the node ran; empty: not known."""
    is_clean: bool = True
    """Whether the node has stopped, and all of its logs were synced."""
    has_lost_writes: bool = False
    """Whether writes that were not synced may be lost, and the controller does not know it yet."""


def next_run(last: LastRun | None, boot_id: str) -> LastRun:
    """What the file says while the node runs. `last` is what it said before; None: there was none,
    so the directory is new, or an earlier release has stopped."""
    last = last or LastRun()
    is_kept = last.is_clean or (boot_id != "" and boot_id == last.boot_id)
    return LastRun(boot_id, is_clean=False, has_lost_writes=last.has_lost_writes or not is_kept)


def read_boot_id(files: Files) -> str:
    """The boot id of the kernel; empty where there is none."""
    try:
        return files.read_bytes(BOOT_ID_PATH).decode("ascii", "replace").strip()
    except OSError:
        return ""


class KeptLastRun:
    """The file of one data directory. Belongs to the event loop."""

    def __init__(self, files: Files, data: str) -> None:
        """`data` is the data directory."""
        self._files = files
        self._path = f"{data}/{FILE_NAME}"
        self._content: LastRun | None = None
        """None before `begin`."""
        self._may_be_clean = False
        """Whether a stop with every open log synced is a clean one: the run before was, or its logs
        are open again."""

    @property
    def has_lost_writes(self) -> bool:
        """Whether the controller has to know that writes may be lost."""
        return self._content is not None and self._content.has_lost_writes

    async def begin(self) -> None:
        """Note that the node runs, before it writes to any log. Raises: CorruptData, OSError."""
        last = await asyncio.to_thread(self._read)
        run = next_run(last, await asyncio.to_thread(read_boot_id, self._files))
        await self._write(run)
        self._may_be_clean = last is None or last.is_clean
        if run.has_lost_writes:
            log.warning(
                "the machine went down before the node had stopped; writes that were not synced "
                "are lost",
                extra={
                    "boot_id": run.boot_id,
                    "boot_id_before": "" if last is None else last.boot_id,
                },
            )

    async def on_registered(self) -> None:
        """The controller knows, and all logs are open. Raises: OSError."""
        self._may_be_clean = True
        if self._content is not None and self._content.has_lost_writes:
            await self._write(msgspec.structs.replace(self._content, has_lost_writes=False))

    async def end(self) -> None:
        """Note that all open logs are synced and closed. After a start that has failed before it
        opened them nothing is known of what a killed run had written. Raises: OSError."""
        if self._content is not None and self._may_be_clean:
            await self._write(msgspec.structs.replace(self._content, is_clean=True))

    def _read(self) -> LastRun | None:
        if not self._files.exists(self._path):
            return None
        data = self._files.read_bytes(self._path)
        try:
            return msgspec.json.decode(data, type=LastRun)
        except msgspec.MsgspecError as error:
            raise CorruptData(self._path, 0, "a run as JSON", str(error)) from None

    async def _write(self, content: LastRun) -> None:
        data = msgspec.json.encode(content) + b"\n"
        await asyncio.to_thread(replace_file, self._files, self._path, data)
        self._content = content
