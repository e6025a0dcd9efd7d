"""Faults that overlap on a real cluster: it works again by itself, and keeps what it promised.

`--rounds=20 --seed=7` makes more of them, others, and on other clusters: of five nodes, with links
that fail one way, and with the servers that the nodes embed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.chaos import Chaos, drawn_chaos

pytestmark = pytest.mark.tier3

PHASES = 2
SEED = 3


@pytest.mark.long
def test_a_cluster_recovers_by_itself_and_keeps_what_it_acked(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed, phases = request.config.getoption("--seed"), request.config.getoption("--rounds")
    if seed is None:
        chaos = Chaos(tmp_path, SEED)
    else:
        chaos = drawn_chaos(tmp_path, seed)
    asyncio.run(chaos.run(phases or PHASES))


@pytest.mark.long
def test_links_between_nodes_fail_one_way(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, SEED, has_links=True)
    asyncio.run(chaos.run(PHASES))
