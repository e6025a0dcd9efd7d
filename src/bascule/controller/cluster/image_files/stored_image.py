"""Reads the metadata image from the files of a node, for tools. The node may be running."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from bascule.controller.cluster.metadata_group import GROUP
from bascule.controller.metadata_machine import MetadataMachine
from bascule.errors import ConfigError, CorruptData
from bascule.host.real import RealFiles
from bascule.metadata.image import Image
from bascule.raft.messages import EntryKind
from bascule.raft.store import PersistentState
from bascule.raft_driver.sqlite_store import SqliteDatabase, restart_mark, stored_node_id

DATABASE: Final = "raft/raft.sqlite"
OnDamage: TypeAlias = Callable[[CorruptData], None]


def read_stored_image(data: Path, on_damage: OnDamage | None = None) -> Image:
    """The image of the last entry that is on this node's disk, committed or not.

    `on_damage` is told where commits are missing, or how many there were is not known; the image
    is then what is left. Reads a copy, so that a node that uses the files is not disturbed. Raises:
    ConfigError where no node has run there, CorruptData, OSError.
    """
    if not (data / DATABASE).exists():
        raise ConfigError(
            f"{data} has no {DATABASE}: name the data directory of a node that has run"
        )
    try:
        stored = _load(data, ignores_mark=False)
    except CorruptData as error:
        if on_damage is None:
            raise
        try:
            stored = _load(data, ignores_mark=True)
        except CorruptData:
            raise error from None
        on_damage(error)
    machine = MetadataMachine(lambda *_: None)
    if stored.snapshot is not None:
        asyncio.run(machine.restore(stored.snapshot))
    machine.apply(
        [e for e in stored.entries if e.kind == EntryKind.NORMAL and e.index > machine.applied]
    )
    return machine.image


def _load(data: Path, *, ignores_mark: bool) -> PersistentState:
    """Raises: CorruptData with the path of the file in `data`, OSError."""
    directory, name = (data / DATABASE).parent, Path(DATABASE).name
    with tempfile.TemporaryDirectory() as place:
        for path in directory.glob(f"{name}*"):
            shutil.copy(path, place)
        copy = f"{place}/{name}"
        try:
            node_id = stored_node_id(copy)
            if ignores_mark:
                restart_mark(RealFiles(), copy, node_id=node_id)
            database = SqliteDatabase.open(copy, node_id=node_id)
            try:
                return database.store(GROUP).load()
            finally:
                database.close()
        except CorruptData as error:
            path = Path(error.file)
            if str(path.parent) != place:
                raise
            raise CorruptData(
                str(directory / path.name),
                error.at,
                error.expected,
                error.found,
                place=error.place,
            ) from error
