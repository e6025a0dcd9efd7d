"""Transcript of the file operations of a compaction, so that the order of syncs is reviewed."""

from __future__ import annotations

from collections.abc import Callable

from bascule.host.real import RealRandom
from bascule.sim.disk import SimFiles
from support.keyed_logs import Model, append_keyed, close_segment, compact, open_keyed


def test_life_of_a_compaction(transcript: Callable[[str, str], None]) -> None:
    files = SimFiles(RealRandom(1))
    log, model = open_keyed(files), Model()
    lines: list[str] = []

    def recorder(title: str, call: Callable[[], object]) -> None:
        before = len(files.operations)
        result = call()
        lines.extend((title, *(f"  {line}" for line in files.operations[before:])))
        lines.extend((f"= {result}", "") if result is not None else ("",))

    def write(*keys: bytes) -> None:
        append_keyed(log, model, [(key, b"value") for key in keys])

    write(b"a", b"b", b"a")
    close_segment(log)
    write(b"c")
    close_segment(log)
    write(b"active")
    log.sync()
    recorder("compact: two segments become one", lambda: compact(files, log, now_ms=9_000))
    recorder("compact: nothing dirty", lambda: compact(files, log, now_ms=9_000))
    write(b"c")
    close_segment(log)
    recorder(
        "compact: the first segment changes, the second does not, too large together",
        lambda: compact(files, log, now_ms=9_000, segment_bytes_max=100),
    )
    log.close()
    recorder("open", lambda: open_keyed(files) and None)
    transcript("storage_compaction", "\n".join(lines))
