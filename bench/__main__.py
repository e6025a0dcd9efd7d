"""`python -m bench [NAME ...] [--quick]`: run measurements; without a name, all of them."""

from __future__ import annotations

import argparse
import importlib

NAMES = (
    "decode", "sendfile", "latency", "ingest", "acked", "reading", "idle", "compaction", "dedupe",
    "restart", "beside_kafka", "spark_read", "spark_latency", "spark_archive", "spark_sink",
    "raft_proposals", "raft_idle", "raft_failover", "raft_sim", "cluster_failover",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no measurement is named {', '.join(sorted(unknown))}; there are {NAMES}")
    for name in arguments.names or NAMES:
        print(f"== {name}", flush=True)
        importlib.import_module(f"bench.{name}").run(quick=arguments.quick)


if __name__ == "__main__":
    main()
