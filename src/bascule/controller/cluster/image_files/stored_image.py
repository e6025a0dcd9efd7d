"""Reads the metadata image from the files of a node, for tools. The node may be running."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Final

from bascule.controller.cluster.metadata_group import GROUP
from bascule.controller.metadata_machine import MetadataMachine
from bascule.errors import ConfigError
from bascule.metadata.image import Image
from bascule.raft.messages import EntryKind
from bascule.raft_driver.sqlite_store import SqliteDatabase, stored_node_id

DATABASE: Final = "raft/raft.sqlite"


def read_stored_image(data: Path) -> Image:
    """The image of the last entry that is on this node's disk, committed or not.

    Reads a copy, so that a node that uses the files is not disturbed. Raises: ConfigError where no
    node has run there, CorruptData, OSError.
    """
    if not (data / DATABASE).exists():
        raise ConfigError(
            f"{data} has no {DATABASE}: name the data directory of a node that has run"
        )
    with tempfile.TemporaryDirectory() as place:
        for path in (data / DATABASE).parent.glob(f"{Path(DATABASE).name}*"):
            shutil.copy(path, place)
        copy = f"{place}/{Path(DATABASE).name}"
        database = SqliteDatabase.open(copy, node_id=stored_node_id(copy))
        try:
            stored = database.store(GROUP).load()
        finally:
            database.close()
    machine = MetadataMachine(lambda *_: None)
    if stored.snapshot is not None:
        asyncio.run(machine.restore(stored.snapshot))
    machine.apply(
        [e for e in stored.entries if e.kind == EntryKind.NORMAL and e.index > machine.applied]
    )
    return machine.image
