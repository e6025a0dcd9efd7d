"""Keeps bytes of damaged logs, so that people can see what a disk has done to them.

Each file of `aside/` named ``damage.<k>`` has one line of JSON that says where its bytes come from,
then these bytes: those of a segment from the first damage on.
"""

from __future__ import annotations

import json
from typing import Final

from bascule.host.api import Files
from bascule.storage.segment import LogPosition, segment_path

PREFIX: Final = "damage."
KEPT_BYTES_MAX: Final = 1 << 20
"""Of one damage."""
KEPT_MAX: Final = 16
"""Files; the oldest ones are removed."""


def keep_evidence(
    files: Files, aside: str, directory: str, end: LogPosition, cause: str
) -> tuple[str, int]:
    """Keep what follows `end` in the log in `directory`; return the file and how many bytes.

    Raises: OSError.
    """
    files.make_dirs(aside)
    numbers = sorted(
        int(name.removeprefix(PREFIX))
        for name in files.list_dir(aside)
        if name.startswith(PREFIX) and name.removeprefix(PREFIX).isdigit()
    )
    for number in numbers[: max(len(numbers) - KEPT_MAX + 1, 0)]:
        files.remove(f"{aside}/{PREFIX}{number}")
    path = segment_path(directory, end.segment_base)
    damaged = files.open(path, write=False).read_at(end.position, KEPT_BYTES_MAX)
    said = {"file": path, "position": end.position, "bytes": len(damaged), "cause": cause}
    kept = f"{aside}/{PREFIX}{numbers[-1] + 1 if numbers else 1}"
    file = files.open(kept, create=True)
    file.append(json.dumps(said).encode() + b"\n", damaged)
    file.close()
    return kept, len(damaged)
