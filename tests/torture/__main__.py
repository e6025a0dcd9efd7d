"""Torture a cluster of real processes: `python -m torture --seconds 1800`, from the folder of the
tests.

Five nodes and NATS take acked messages while they are killed, paused, cut off, filled up, damaged
and replaced. Then every ack is compared with every replica and with what consumers have read. The
seed determines which faults come in which order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bascule.sim.mutants.cluster import CLUSTER_MUTANTS
from torture.plan import DEFAULT_KINDS, KINDS, VERSIONS
from torture.report import draw, print_report
from torture.run import Outcome, Progress, Run, Settings
from torture.synced_journal import MUTANT

NAMESPACE = "TORTURE_NAMESPACE"
NAMESPACES = ("-m", "--pid", "--fork", "--kill-child", "--mount-proc")
PLAIN_SECONDS = 10.0
"""Between two lines of progress where there is no terminal."""


def main() -> int:
    options = parse()
    enter_namespace()
    if options.mutant:
        os.environ[MUTANT] = options.mutant
    seed = SystemRandom().getrandbits(31) if options.seed is None else options.seed
    directory = options.out or Path(tempfile.mkdtemp(prefix="torture-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        print(f"{directory} is not empty", file=sys.stderr)
        return 2
    kinds = tuple(options.faults.split(",")) if options.faults else DEFAULT_KINDS
    if options.versions:
        kinds = tuple(dict.fromkeys((*kinds, VERSIONS)))
    console = Console(stderr=options.json)
    console.print(f"seed {seed}: repeat with --seed {seed}; everything is in {directory}")
    settings = Settings(directory, seed, options.seconds, kinds, options.rate, options.rounds)
    run = Run(settings, say=lambda _: None)
    outcome = asyncio.run(watched(run, console))
    faults = outcome.faults
    (directory / "result.json").write_text(json.dumps(outcome.result, indent=2) + "\n")
    draw(directory / "torture.png", outcome.result, faults, outcome.acked)
    print_report(console, outcome.result)
    if options.json:
        print(json.dumps(outcome.result))
    return 1 if outcome.result["findings"] else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of faults")
    parser.add_argument("--rounds", type=int, help="so many, instead of --seconds")
    parser.add_argument("--seed", type=int, help="repeats the order of faults")
    parser.add_argument("--faults", help=f"comma separated, of {', '.join(KINDS)}")
    parser.add_argument(
        "--versions",
        action="store_true",
        help=f"begin with the release before, with the fault {VERSIONS}, and end with this one",
    )
    parser.add_argument("--rate", type=float, default=3_000, help="messages a second")
    parser.add_argument("--mutant", choices=CLUSTER_MUTANTS, help="put this defect into the nodes")
    parser.add_argument("--out", type=Path, help="a new or empty directory for everything")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    unknown = set((options.faults or KINDS[0]).split(",")) - set(KINDS)
    if unknown:
        parser.error(f"unknown faults {sorted(unknown)}; expected some of {', '.join(KINDS)}")
    return options


def enter_namespace() -> None:
    """Go on in a namespace in which file systems can be mounted, if there can be one. What is
    mounted there nobody else sees, and all processes end with the one that was started."""
    if NAMESPACE in os.environ or shutil.which("unshare") is None:
        return
    way = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), *NAMESPACES]
    mounting = [*way, "mount", "-t", "tmpfs", "none", "/mnt"]
    tried = subprocess.run(mounting, capture_output=True, check=False)
    os.environ[NAMESPACE] = "0" if tried.returncode else "1"
    if tried.returncode == 0:
        os.execvp("unshare", [*way, sys.executable, "-m", "torture", *sys.argv[1:]])


async def watched(run: Run, console: Console) -> Outcome:
    """Run, and show how far it is."""
    running = asyncio.create_task(run.run())
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            while not running.done():
                live.update(line_of(run.progress, run.settings.seconds))
                await asyncio.wait([running], timeout=0.25)
    else:
        said = 0.0
        while not running.done():
            if time.monotonic() - said > PLAIN_SECONDS:
                said = time.monotonic()
                console.print(line_of(run.progress, run.settings.seconds), soft_wrap=True)
            await asyncio.wait([running], timeout=0.25)
    return running.result()


def line_of(progress: Progress, seconds: float) -> Text:
    findings = f"{progress.findings} findings" if progress.findings else "no findings"
    return Text.assemble(
        (f"{progress.seconds:6.0f}/{seconds:.0f} s  ", "bold"),
        f"{progress.acks_per_second:6,.0f} acks/s  {progress.acked:,} acks  ",
        f"oldest without ack {progress.oldest_s:.1f} s  ",
        f"{progress.faults} faults in {progress.rounds + 1} rounds  ",
        (findings, "bold red" if progress.findings else "green"),
        f"  {progress.now}",
    )


if __name__ == "__main__":
    sys.exit(main())
