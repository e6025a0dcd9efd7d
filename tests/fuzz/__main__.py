"""Fuzz for long: `python -m fuzz --seconds 60`, from the folder of the tests.

A finding is made smaller, kept in tests/corpus/<target>/, where the usual tests replay it, and
printed with what it raised.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import time
import traceback
from pathlib import Path
from random import Random, SystemRandom

from fuzz.mutation import mutate
from fuzz.target import Target
from fuzz.targets import TARGETS

SHRINK_SECONDS_MAX = 5.0
POOL_BYTES_MAX = 1 << 14
"""Larger inputs of the corpus are only replayed: variants of them would be slow."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, help="repeats a run")
    options = parser.parse_args()
    logging.disable()  # what the program says of hostile bytes is of no interest here
    seed = SystemRandom().getrandbits(32) if options.seed is None else options.seed
    print(f"seed {seed}: repeat with --seed {seed}", flush=True)
    findings = [
        fuzz(TARGETS[name], Random(f"{seed} {name}"), options.seconds)
        for name in options.targets or TARGETS
    ]
    return 1 if any(findings) else 0


def fuzz(target: Target, random: Random, seconds: float) -> list[Path]:
    """Run hostile variants of the target's seeds and corpus; returns the files of what it found."""
    kept_before = [path.read_bytes() for path in sorted(target.corpus.glob("*"))]
    pool = target.seeds() + [data for data in kept_before if len(data) <= POOL_BYTES_MAX]
    known: set[str] = set()
    kept: list[Path] = []
    until, runs = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        data = mutate(pool[random.randrange(len(pool))], random, pool)
        runs += 1
        what = failure(target, data)
        if what is None or what in known:
            continue
        known.add(what)
        small = shrink(target, data, what)
        kept.append(keep(target, small))
        print(f"{target.name}: {kept[-1]} ({len(small)} bytes)\n{what}", flush=True)
    print(f"{target.name}: {runs} runs, {len(kept)} findings", flush=True)
    return kept


def failure(target: Target, data: bytes) -> str | None:
    """What the target raised, and where; None where all is well."""
    try:
        target.run(data)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
        return f"{type(error).__name__} at {where}"
    return None


def shrink(target: Target, data: bytes, what: str) -> bytes:
    """Take pieces out for as long as the same thing is raised."""
    size, until = max(len(data) // 2, 1), time.monotonic() + SHRINK_SECONDS_MAX
    while time.monotonic() < until:
        at = 0
        before = len(data)
        while at < len(data) and time.monotonic() < until:
            shorter = data[:at] + data[at + size :]
            if failure(target, shorter) == what:
                data = shorter
            else:
                at += size
        if size == 1 and len(data) == before:
            break
        size = max(size // 2, 1)
    return data


def keep(target: Target, data: bytes) -> Path:
    path = target.corpus / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    sys.exit(main())
