"""Whole nodes in the simulator, with a bounded number of seeds; `make sim` runs more of them.

A bug that a seed finds gets its own test of the class that has it, because a seed gives another
history after any change of the random choices.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bascule
from bascule.controller.cluster.healing import history
from bascule.sim.cluster.faults import ClusterFaults, _Loss, is_controller
from bascule.sim.cluster.installation import NOT_RUN, POOLS, QUEUES, THREADING
from bascule.sim.cluster.plan import CHOSEN, SCENES, WIDE, ClusterFault, draw_plan
from bascule.sim.cluster.run import ClusterOptions, run_seed
from bascule.sim.cluster.simulation import Simulation, make_prng
from bascule.sim.cluster.streams import StreamTrait
from bascule.sim.cluster.wide import draw_wide
from bascule.sim.mutants.cluster import CLUSTER_MUTANTS
from bascule.sim.raft.run import SimulationFailed

pytestmark = pytest.mark.tier2

SOURCE = Path(bascule.__file__).parent
THREADED = ("controller", "datastream", "heartbeats", "raft_driver", "replica", "tables")
"""Packages whose threads the simulator runs."""
SHORT = ClusterOptions(seconds=4)
WIDE_SEEDS = range(7)


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_breaks_nothing(seed: int) -> None:
    result = run_seed(seed, SHORT)
    assert result.acked > 0


@pytest.mark.parametrize("seed", WIDE_SEEDS)
def test_a_wide_seed_breaks_nothing(seed: int) -> None:
    result = run_seed(seed, ClusterOptions(seconds=4, streams=1, groups=0, wide=True))
    assert result.acked > 0


def test_what_is_drawn_widely_is_drawn_by_no_other_seed() -> None:
    wide = {trait for trait in StreamTrait if trait in (StreamTrait.EXPIRING, StreamTrait.BRIEF)}
    drawn: set[ClusterFault] = set()
    for seed in range(200):
        plan = draw_plan(seed, make_prng(seed), all_faults=True)
        assert plan.faults.keys().isdisjoint((*WIDE, *SCENES, *CHOSEN))
        assert not any(wide & stream.traits for stream in plan.streams)
        widened = draw_wide(plan)
        assert draw_wide(plan) == widened
        assert widened.faults.keys().isdisjoint(CHOSEN)
        drawn |= widened.faults.keys()
        wide -= {trait for stream in widened.streams for trait in stream.traits}
    assert not wide
    assert drawn >= {*WIDE}


@pytest.mark.parametrize("seed", range(3))
def test_damaged_replicas_heal(seed: int) -> None:
    """Bits flip in logs, and logs lose their ends, of one replica of each partition."""
    faults = "bit flips,truncation,kill"
    result = run_seed(seed, ClusterOptions(seconds=8, streams=2, faults=faults))
    assert result.acked > 0


@pytest.mark.parametrize("traits", ["plain", "compacted"])
def test_an_operator_repairs_what_a_node_heals_no_more(
    monkeypatch: pytest.MonkeyPatch, traits: str
) -> None:
    """As after three times in 24 h."""
    monkeypatch.setattr(history, "PARTITION_MAX", 0)
    options = ClusterOptions(seconds=8, streams=2, faults="bit flips", traits=traits)
    result = run_seed(0, options)
    assert result.repairs > 0
    assert result.unrepaired == 0


@pytest.mark.parametrize("traits", ["plain", "compacted"])
@pytest.mark.parametrize(
    ("seed", "faults", "times"),
    [
        (1, "rolling restart", 1),
        (1, "node changes,kill", 3),  # a node joins, is to be removed, and stays or not
        (1, "other settings,kill,power loss", 5),
        (3, "ring cut,pause and kill", 5),
    ],
)
def test_operators_and_networks_do_more_than_fail(
    seed: int, faults: str, times: int, traits: str
) -> None:
    options = ClusterOptions(
        seconds=12, streams=2, groups=0, readers=2, traits=traits, faults=faults
    )
    result = run_seed(seed, options)
    assert sum(result.faults.values()) >= times
    assert result.faults.keys() >= {faults.split(",")[0]}
    assert result.acked > 0
    assert result.read > 0


@pytest.mark.parametrize("seed", range(2))
def test_groups_outlive_their_coordinators(seed: int) -> None:
    """Consumers join over the wire, and are lost as nodes are."""
    faults = "kill,loss of a leader,loss of a member"
    result = run_seed(seed, ClusterOptions(seconds=8, streams=1, groups=1, faults=faults))
    assert result.consumer_rounds > 0


@pytest.mark.parametrize(
    ("seed", "seconds", "faults"),
    [
        (1, 8, "kill,power loss,outage"),
        (8, 8, "loss of a leader,split,isolate"),
        (3, 12, "kill,purge"),
    ],
)
def test_tables_are_read_written_and_watched(seed: int, seconds: int, faults: str) -> None:
    result = run_seed(
        seed,
        ClusterOptions(
            seconds=seconds, streams=1, groups=0, readers=0, traits="table", faults=faults
        ),
    )
    assert sum(result.faults.values()) > 0
    assert "purge" not in faults or result.faults["purge"] > 0
    assert min(result.table_reads, result.table_writes, result.watched) > 0
    assert result.forgotten > 0


def test_an_operator_purges_no_table_whose_log_is_damaged() -> None:
    """Which keys its clients use cannot be read: the simulator itself failed at it."""
    options = ClusterOptions(
        seconds=8, streams=1, groups=0, readers=0, traits="table", faults="bit flips,purge,kill"
    )
    assert run_seed(7, options).faults["bit flips"] > 0


def test_a_log_is_damaged_behind_the_scrubber_that_reads_it() -> None:
    """That pass ended behind the damage, and counted as one that had looked for it."""
    result = run_seed(460_495, ClusterOptions(seconds=3, streams=1, groups=0))
    assert result.faults["bit flips"] == 1


def test_a_leader_is_told_of_a_batch_that_says_other_offsets_than_its_own() -> None:
    """Followers took what had been damaged in its header for a batch that they have, asked again
    and left the replicas in sync; the leader was the last one in sync, which cannot heal."""
    result = run_seed(831_026, ClusterOptions(seconds=3, streams=1, groups=0))
    assert result.faults["bit flips"] == 1


def test_a_client_that_was_about_to_start_stays_down_when_clients_stop() -> None:
    """It had died, began another payload after all had settled, and left what it had sent."""
    result = run_seed(851_053, ClusterOptions(seconds=3))
    assert result.payloads > 0


def test_copies_of_an_older_cluster_need_not_know_who_wrote_what_was_removed() -> None:
    """A leader says where the epochs of removed records began from cluster version 2 on."""
    result = run_seed(911_321, ClusterOptions(seconds=3, streams=1, groups=0))
    assert result.faults["wiped disk"] == 1


@pytest.mark.parametrize(("seed", "acked_min"), [(866_849, 300), (867_627, 100)])
def test_slow_disks_with_a_segment_for_each_message_become_whole(seed: int, acked_min: int) -> None:
    """Publishers kept all disks busy after the faults. A node did not close a removed log of 12,000
    segments in time, and a replica that lagged did not catch up."""
    result = run_seed(seed, ClusterOptions(seconds=3, streams=1, groups=0))
    assert result.acked > acked_min


def test_a_leader_that_lost_what_was_not_synced_has_a_batch_for_its_last_offset() -> None:
    """Compaction had removed the tombstones before that. No follower reached the end of the log,
    and the leader took no message, since too few replicas were in sync."""
    result = run_seed(870_012, ClusterOptions(wide=True))
    assert result.unclean > 0


def test_consumers_wait_for_the_next_coordinator_where_a_disk_fails() -> None:
    """They got an error that ends them where the log of the groups had stopped on its leader."""
    options = ClusterOptions(seconds=8, faults="disk errors,bit flips,isolate")
    assert run_seed(322, options).faults["disk errors"] > 2


def test_what_a_disk_fails_to_do_for_payloads_is_done_later() -> None:
    result = run_seed(109, ClusterOptions(seconds=8, faults="disk errors", traits="payloads"))
    assert result.faults["disk errors"] > 1
    assert result.payloads > 0


def test_a_payload_that_could_not_be_removed_as_a_whole_counts_for_no_record() -> None:
    options = ClusterOptions(seconds=10, faults="disk errors", traits="payloads,compacted")
    assert run_seed(656, options).payloads > 0


def test_two_deletions_at_once_are_carried_out() -> None:
    """One of them was told while the other one was under way, and not again."""
    result = run_seed(476_694, ClusterOptions(seconds=3, streams=1, groups=0))
    assert result.faults["stream churn"] == 2


def test_a_follower_of_small_segments_keeps_up() -> None:
    """It got one batch in a round trip, as each segment had one, and never came back in sync."""
    result = run_seed(448_477, ClusterOptions(seconds=3, streams=1, groups=0))
    assert result.faults == {"ring cut": 1, "split": 1}


@pytest.mark.parametrize("seed", [490_545, 496_369])
def test_damaged_replicas_and_removed_records_keep_nobody_behind(seed: int) -> None:
    """A replica with known damage was not healed once others had caught up. A copy stood still at a
    tombstone that its leader had removed, as the last record of the log."""
    result = run_seed(seed, ClusterOptions(seconds=3, streams=1, groups=0))
    assert result.faults["bit flips"] == 1


@pytest.mark.parametrize(
    ("seed", "seconds", "faults", "traits"),
    [
        (37, 12, "outage,power loss,kill", "compacted,unsynced"),
        (43, 12, "outage,power loss,kill", "compacted,unsynced"),
        (
            17, 18, "outage,power loss,purge,wiped disk,loss of a copied leader",
            "compacted,unsynced,lenient",
        ),
    ],
)  # fmt: skip
def test_compacted_logs_outlive_unclean_elections(
    seed: int, seconds: int, faults: str, traits: str
) -> None:
    """Replicas lacked values that compaction had removed for later ones, which were undone."""
    options = ClusterOptions(seconds=seconds, streams=1, groups=0, faults=faults, traits=traits)
    assert run_seed(seed, options).acked > 0


@pytest.mark.parametrize("seed", [0, 10])
def test_a_leader_that_hears_of_no_other_one_refuses_nothing(seed: int) -> None:
    """It was told that a compare-and-set had failed, which the next leader had stored."""
    result = run_seed(
        seed,
        ClusterOptions(
            seconds=20, nodes=3, streams=1, groups=0, readers=0, traits="table,quiet",
            faults="deposed unheard",
        ),
    )  # fmt: skip
    assert result.faults
    assert result.table_writes > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_node_with_older_metadata_does_not_start(seed: int) -> None:
    """It voted again, and was elected without what it had confirmed."""
    lines: list[str] = []
    options = ClusterOptions(
        seconds=20, nodes=3, streams=1, groups=0, readers=0, traits="plain",
        faults="older metadata,stream churn,loss of the controller",
    )  # fmt: skip
    assert run_seed(seed, options, write=lines.append).faults["older metadata"] > 0
    assert any("CorruptData" in line and "commits or more" in line for line in lines)


def test_a_controller_that_stops_has_another_one_elected_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else nobody decides for up to an election time-out, and a decision of its last moments may be
    known to the leader that it replaces alone."""

    def stop_controller(self: ClusterFaults) -> bool:
        return self._operator.is_whole() and self._lose(self._pick(is_controller), _Loss.STOP)

    monkeypatch.setattr(ClusterFaults, "_stop", stop_controller)
    options = ClusterOptions(
        seconds=4, streams=1, groups=0, readers=0, traits="plain", faults="planned stop"
    )
    lines: list[str] = []
    assert run_seed(0, options, write=lines.append).faults["planned stop"] > 0
    controller, stopping = 0, set()
    for line in lines:
        _, node, event = line.rstrip().split(maxsplit=2)
        if "raft leader changed" in event:
            controller = ast.literal_eval(event[event.index("{") :])["leader"]
        elif event == "is asked to stop":
            assert node == f"n{controller}"
            stopping.add(node)
        elif event.endswith("has ended") and node in stopping:
            assert node != f"n{controller}"


def test_a_partition_in_need_of_repair_hides_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is stored twice is seen at the end only."""

    unrepaired = {("s0", 0): "its last replica is damaged"}
    monkeypatch.setattr(Simulation, "unrepaired", lambda _: unrepaired)
    options = ClusterOptions(
        seconds=6, streams=3, groups=0, traits="plain", faults="planned election,planned stop"
    )
    assert run_seed(0, options).unrepaired == 1
    with CLUSTER_MUTANTS["nothing compared in a handover"].patch():
        for seed in range(20):
            try:
                run_seed(seed, options)
            except SimulationFailed as failed:
                assert (
                    failed.invariant in CLUSTER_MUTANTS["nothing compared in a handover"].found_by
                )
                return
    pytest.fail("the other partitions were not checked at the end")


def test_a_seed_replays_exactly_in_another_process() -> None:
    """The addresses of objects, the hashes of strings and a trace change nothing."""
    lines: list[str] = []
    digests = {run_seed(5, SHORT, write=lines.append).digest}
    assert lines
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "bascule.sim", "cluster", "--seed", "5", "--seconds", "4",
             "--json"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        )  # fmt: skip
        digests.add(json.loads(done.stdout)["digest"])
    assert len(digests) == 1


def imported(path: Path) -> set[str]:
    """The modules and names of modules that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("threading", THREADING),
        ("queue.SimpleQueue", QUEUES),
        ("concurrent.futures.ThreadPoolExecutor", POOLS),
    ],
)
def test_every_module_with_threads_is_simulated(name: str, listed: tuple[str, ...]) -> None:
    for package in THREADED:
        for path in sorted((SOURCE / package).rglob("*.py")):
            module = ".".join(("bascule", *path.relative_to(SOURCE).with_suffix("").parts))
            if name in imported(path):
                assert module in (*listed, *NOT_RUN), f"{module} imports {name}"
