"""What was acked stays where it may be needed, whatever nodes, machines and operators do."""

from __future__ import annotations

import os
from random import Random

import pytest

from bascule.metadata.replicas import steps
from bascule.metadata.replicas.steps import CHANGES_MAX
from support.replicated_logs import ReplicatedLogs

SEED = int(os.environ.get("SEED", "0"))
"""The first scene."""
SCENES = int(os.environ.get("SCENES", "80"))
STEPS = 160


def test_no_clean_leader_lacks_an_acked_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """`SEED=n SCENES=1` runs one scene again. In every other scene decisions have many steps."""
    acks = clean = eligible = unclean = doubtful = 0
    for seed in range(SEED, SEED + SCENES):
        monkeypatch.setattr(steps, "CHANGES_MAX", (1, CHANGES_MAX)[seed % 2])
        scene = ReplicatedLogs(Random(seed))
        try:
            for _ in range(STEPS):
                scene.step()
        except AssertionError as error:
            trace = "\n".join(scene.trace)
            raise AssertionError(f"scene {seed}: {error}, after\n{trace}") from error
        acks += scene.acks
        clean += scene.clean_elections
        eligible += scene.eligible_elections
        unclean += scene.unclean_elections
        doubtful += scene.doubtful_elections
    assert SCENES < 50 or min(acks, clean, eligible, unclean, doubtful) > 0, (
        "something of each kind"
    )
