"""`python -m bench [NAME ...] [--quick]`: run measurements; without a name, all of them.

`python -m bench streams --count N --nodes N` measures one size of one cluster. `--rounds N` is for
the measurements of `ROUNDS_CHOSEN`.
"""

from __future__ import annotations

import argparse
import importlib

NAMES = (
    "decode", "sendfile", "latency", "ingest", "acked", "reading", "idle", "compaction", "dedupe",
    "restart", "beside_kafka", "spark_read", "spark_latency", "spark_archive", "spark_sink",
    "raft_proposals", "raft_idle", "raft_failover", "raft_sim", "cluster_failover", "streams",
    "cluster_acked", "cluster_latency", "cluster_catch_up",
)  # fmt: skip

ROUNDS_CHOSEN = ("cluster_acked", "cluster_latency", "cluster_catch_up")
"""Measurements that take a number of rounds."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--count", type=int, help="streams to create, for `streams`")
    parser.add_argument("--nodes", type=int, help="nodes of the cluster, for `streams`")
    parser.add_argument("--rounds", type=int, help=f"for {', '.join(ROUNDS_CHOSEN)}")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no measurement is named {', '.join(sorted(unknown))}; there are {NAMES}")
    sizes = {"count": arguments.count, "nodes": arguments.nodes}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    if sizes and arguments.names != ["streams"]:
        parser.error(f"only `streams` takes --{next(iter(sizes))}")
    if arguments.rounds is not None and not set(arguments.names or NAMES) <= set(ROUNDS_CHOSEN):
        parser.error(f"only {', '.join(ROUNDS_CHOSEN)} take --rounds")
    for name in arguments.names or NAMES:
        print(f"== {name}", flush=True)
        rounds = {"rounds": arguments.rounds} if name in ROUNDS_CHOSEN else {}
        importlib.import_module(f"bench.{name}").run(quick=arguments.quick, **sizes, **rounds)


if __name__ == "__main__":
    main()
