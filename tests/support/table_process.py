"""A process that applies records to a table until it is killed, and the records that it applies."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from random import Random

from bascule.host.real import RealFiles
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.rows import Rows
from bascule.tables.table_file import TableFile

OPLOG_BYTES_MAX = 400_000
"""So small that files are rotated and removed now and then."""


def record_at(offset: int) -> tuple[bytes, int, int, bytes | None, str | None, int | None]:
    dice = Random(offset)
    key = b"%d" % min(dice.randint(0, 300), dice.randint(0, 300))
    return key, offset, 5, None if dice.random() < 0.2 else b"%d" % offset, None, None


def open_table(directory: Path) -> tuple[TableFile, Oplog]:
    path = str(directory / "0.oplog")
    oplog = Oplog(RealFiles(), path, table=7, bytes_max=OPLOG_BYTES_MAX)
    return TableFile(str(directory / "0.db"), "t 0", oplog), oplog


def main() -> None:
    directory, seed = Path(sys.argv[1]), int(sys.argv[2])
    file, _ = open_table(directory)
    dice, stopped = Random(seed), False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    while not stopped:
        start = file.position.offset
        end = start + dice.choice((1, 10, 100, 500))
        file.apply(Rows([record_at(n) for n in range(start, end)], end, 0), 1)
        print(end, flush=True)
    file.close()


if __name__ == "__main__":
    main()
