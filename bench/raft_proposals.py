"""Committed proposals/s of a Raft group of three processes on a real disk: over PySyncObj with its
journal, and over MicroRaft's Java library with its SQLite store; syncs per proposal; latencies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from bench.harness import median_ratio, report, row, work_directory
from bench.raft.cluster import Cluster, cluster

ROOT: Final = Path(__file__).resolve().parents[1]
MICRORAFT: Final = ROOT / "bench" / "raft" / "microraft"
PYSYNCOBJ: Final = "pysyncobj==0.3.17"
PYSYNCOBJ_SETTINGS: Final[dict[str, dict[str, object]]] = {
    # As it comes: appends are sent every 100 ms, up to 64 KiB in each.
    "pysyncobj": {},
    # Its documented way to short latencies: every command is sent at once, by itself.
    "pysyncobj_unbatched": {"appendEntriesUseBatch": False},
    # The fastest that was found by tested, far from what it recommends: followers truncate and
    # repeat what they have applied, which its log calls critical.
    "pysyncobj_5ms": {"appendEntriesPeriod": 0.005},
}
ROUNDS: Final = 5
SECONDS: Final = 10.0
WARM_SECONDS: Final = 2.0
WARM_ROUNDS: Final = (6, 40)
"""At least and at most so many loads of `WARM_ROUND_SECONDS` until Java's compiler is through."""
WARM_ROUND_SECONDS: Final = 5.0
SINGLE_SECONDS: Final = 3.0
IN_FLIGHT: Final = 512
PAYLOAD_BYTES: Final = 128


def built_microraft(directory: Path) -> str:
    """The class path of the Java program, built by Maven in `directory`."""
    project = directory / "microraft"
    shutil.copytree(MICRORAFT, project)
    subprocess.run(["mvn", "-q", "-B", "package"], cwd=project, check=True, stdout=sys.stderr)
    jars = [project / "target" / "microraft-bench-1.jar"]
    return os.pathsep.join(map(str, jars + sorted((project / "target" / "jars").glob("*.jar"))))


def installed_pysyncobj(directory: Path) -> Path:
    """A directory for PYTHONPATH that has PySyncObj."""
    target = directory / "pysyncobj"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target),
         PYSYNCOBJ],
        check=True, stdout=sys.stderr,
    )  # fmt: skip
    return target


def clusters(directory: Path, stack: contextlib.ExitStack) -> dict[str, Cluster]:
    """All groups, ours first; MicroRaft only where Java and Maven are."""
    started: dict[str, Cluster] = {}

    def start(name: str, command: list[str], **environment: str) -> None:
        started[name] = stack.enter_context(cluster(name, command, directory, environment))

    python = [sys.executable, "-m"]
    start("ours", [*python, "bench.raft.ours_member"], PYTHONPATH=str(ROOT))
    path = os.pathsep.join([str(ROOT), str(installed_pysyncobj(directory))])
    for name, settings in PYSYNCOBJ_SETTINGS.items():
        start(name, [*python, "bench.raft.pysyncobj_member"],
              PYTHONPATH=path, PYSYNCOBJ_SETTINGS=json.dumps(settings))  # fmt: skip
    if shutil.which("mvn") and shutil.which("java"):
        java = ["java", "-cp", built_microraft(directory), "bascule.bench.Member"]
        start("microraft", java)
    return started


def warmed_up(java: Cluster, rounds: tuple[int, int]) -> list[float]:
    """Load it until three loads in turn were no faster than those before; the rates of all."""
    least, most = rounds
    rates: list[float] = []
    while len(rates) < most:
        rates.append(java.load(IN_FLIGHT, WARM_ROUND_SECONDS, PAYLOAD_BYTES)["rate"])
        if len(rates) >= least and max(rates[-3:]) <= 1.05 * max(rates[:-3], default=0.0):
            break
    return rates


Rounds = dict[str, list[dict[str, Any]]]


def measure(groups: dict[str, Cluster], rounds: int, seconds: float) -> tuple[Rounds, Rounds]:
    """What each group did in each round: with 512 in flight, and with one."""
    loaded: Rounds = {name: [] for name in groups}
    single: Rounds = {name: [] for name in groups}
    for _ in range(rounds):
        for name, group in groups.items():
            # What another left to be written later is not to be waited for here.
            os.sync()
            group.load(IN_FLIGHT, WARM_SECONDS, PAYLOAD_BYTES)
            loaded[name].append(group.load(IN_FLIGHT, seconds, PAYLOAD_BYTES))
            single[name].append(group.load(1, SINGLE_SECONDS, PAYLOAD_BYTES))
    return loaded, single


def syncs_per_proposal(round_: dict[str, Any]) -> float:
    """Of the node that syncs most: counted by the kernel, or else by the node itself."""
    counted = [count for count in round_["syncs"] if count is not None]
    own = [count for count in round_["syncs_own"] if count is not None]
    return float(max(counted or own) / round_["committed"])


def rows(loaded: Rounds, single: Rounds, warming: list[float]) -> list[dict[str, Any]]:
    """The report: rates over the others, syncs, latencies."""
    rates = {name: [r["rate"] for r in rounds] for name, rounds in loaded.items()}
    found = []
    for name, what, bar in (
        ("pysyncobj", "PySyncObj with its journal, as it comes", 3.0),
        ("pysyncobj_unbatched", "PySyncObj that sends each command at once", 3.0),
        ("pysyncobj_5ms", "PySyncObj that appends every 5 ms", None),
        ("microraft", "MicroRaft with its SQLite store", 0.3),
    ):
        if name not in rates:
            continue
        figure = f"committed proposals/s, 512 in flight, over {what}"
        ratio = median_ratio(rates["ours"], rates[name])
        if name == "microraft":
            ratio["others_warming_up"] = warming
        if bar is None:
            found.append({"figure": figure, **ratio})
        else:
            found.append(row(figure, ratio, at_least=bar))
    per = sorted(syncs_per_proposal(r) for r in loaded["ours"])
    found.append(row("syncs per committed proposal, 512 in flight, of the node with most",
                     {"value": round(statistics.median(per), 4), "rounds": per},
                     at_most=0.05))  # fmt: skip
    for in_flight, by_name in ((IN_FLIGHT, loaded), (1, single)):
        for name, rounds in by_name.items():
            p99 = statistics.median(r["p99_ms"] for r in rounds)
            p50 = statistics.median(r["p50_ms"] for r in rounds)
            found.append({"figure": f"{name}, {in_flight} in flight: p99 in ms",
                          "value": p99, "p50_ms": p50, "rounds": rounds})  # fmt: skip
    return found


def run(*, quick: bool = False) -> None:
    rounds, seconds = (1, 3.0) if quick else (ROUNDS, SECONDS)
    with work_directory() as directory, contextlib.ExitStack() as stack:
        groups = clusters(directory, stack)
        warming: list[float] = []
        if "microraft" in groups:
            warming = warmed_up(groups["microraft"], (4, 4) if quick else WARM_ROUNDS)
        loaded, single = measure(groups, rounds, seconds)
    report("raft_proposals", rows(loaded, single, warming))
