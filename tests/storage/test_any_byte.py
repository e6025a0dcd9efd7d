"""Flip any byte of any file of a log, truncate the file there, or zero a range of it.

The default run takes samples. `--torture` (see `make torture`) takes every byte, and every eleventh
during a segment replacement.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator

import pytest

from bascule.errors import BasculeError, CorruptData
from bascule.host.real import RealRandom
from bascule.sim.disk import SimFiles
from bascule.storage.compaction.replacement_manifest import FILE_NAME as SWAP
from fuzz.storage_targets import Scene, check_all, check_damaged, content_of, load, scenes
from support.keyed_logs import Model, append_keyed, close_segment, compact, held, open_keyed
from support.stored_batches import DIRECTORY

SAMPLE_STEP = 7
"""The default run damages every seventh byte, from another start in each file."""
FLIPS = (0x01, 0x80, 0xFF)


def damages(data: bytes, at: int) -> Iterator[bytes]:
    for flip in FLIPS:
        yield data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    yield data[:at]
    for length in (8, 200):
        zeroed = data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
        if zeroed != data:
            yield zeroed


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.name.replace(" ", "-"))
def test_damage_anywhere_is_harmless_or_refused(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    step = 1 if request.config.getoption("--torture") else SAMPLE_STEP
    outcomes: dict[str, Counter[str]] = {}
    for row, name in enumerate(scene.files):
        counts = outcomes[name] = Counter()
        for at in range(row % step, len(scene.content[name]), step):
            for data in damages(scene.content[name], at):
                try:
                    counts[check_damaged(scene, name, data)] += 1
                except Exception as error:
                    error.add_note(f"{scene.name}: {name} damaged at byte {at}")
                    raise
        counts[check_damaged(scene, name, scene.content[name])] += 1
    for name, counts in outcomes.items():
        assert counts["served"] >= 1, name
        if name.endswith(".log") and scene.content[name] and scene.kept:
            assert counts["refused"] >= 1, f"no damage of {name} was seen"
        if not name.endswith(".log"):
            assert not counts["cut"], f"{name} cost records"
        if name.endswith("index"):
            assert not counts["refused"], f"{name} is rebuilt, never refused"


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.name.replace(" ", "-"))
def test_an_emptied_synced_segment_is_refused(scene: Scene) -> None:
    """An emptied segment is refused, because its bytes were synced."""
    for name in scene.files:
        if name.endswith(".log") and scene.content[name]:
            found = check_damaged(scene, name, b"")
            assert found == "refused", f"{name} of {scene.name}: {found}"


def interrupted_replacements() -> list[dict[str, bytes]]:
    """A log's directory at each operation of a compaction during a segment replacement."""
    found = []
    for operation in range(1, 1_000):
        files, model = SimFiles(RealRandom(1)), Model()
        log = open_keyed(files)
        for n in range(12):
            append_keyed(log, model, [(b"k%d" % (n % 2), b"v%d" % n), (b"own%d" % n, b"x" * 200)])
        close_segment(log)
        files.fail(operation, errno.EIO)
        try:
            compact(files, log, now_ms=5_000)
        except (OSError, BasculeError):
            content = content_of(files)
            if SWAP in content:
                found.append(content)
        else:
            if files.fault_pending():
                return found
    raise AssertionError("the compaction never ends")


def test_damage_during_a_segment_replacement(request: pytest.FixtureRequest) -> None:
    """The log has the same records as without the damage, or it is refused."""
    everything = request.config.getoption("--torture")
    step, directories = 11, interrupted_replacements()
    assert directories, "no segment replacement was interrupted"
    if not everything:
        step, directories = 89, directories[::4]
    outcomes: Counter[str] = Counter()
    for number, content in enumerate(directories):
        whole = held(open_keyed(load(content)))
        for name, data in content.items():
            for at in range(number % step, len(data), step):
                for damage in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
                    try:
                        log = open_keyed(load({**content, name: damage}))
                        check_all(log)
                        found = held(log)
                    except CorruptData as error:
                        assert error.file.startswith(f"{DIRECTORY}/")
                        outcomes["refused"] += 1
                    else:
                        assert found == whole, f"{name} damaged at byte {at}"
                        outcomes["whole"] += 1
    assert outcomes["whole"] > 0
    assert outcomes["refused"] > 0
