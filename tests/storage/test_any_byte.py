"""Any byte of any file of a log flipped, the file cut there, or a range of it zeroed.

The usual run takes samples, `--torture` (see `make torture`) every byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from fuzz.storage_targets import Scene, check_damaged, scenes

SAMPLE_STEP = 7
"""In the usual run every seventh byte is damaged, another seventh in each file."""
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
def test_damage_anywhere_is_harmless_or_named(scene: Scene, request: pytest.FixtureRequest) -> None:
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
def test_only_a_tail_that_was_not_synced_is_ever_cut(scene: Scene) -> None:
    """A segment emptied outright: below what was synced that is named."""
    for name in scene.files:
        if name.endswith(".log") and scene.content[name]:
            found = check_damaged(scene, name, b"")
            assert found == "refused", f"{name} of {scene.name}: {found}"
