"""`python -m bench [NAME ...] [--quick]`: run measurements; without a name, all of them.

`python -m bench streams --count N --nodes N` measures one size of one cluster, and
`python -m bench cluster_idle --count N` so many partitions, as `node_loss`,
and `table_memory` so many keys;
`python -m bench cluster_failover --rounds N` so many rounds of each scene, as of other clusters;
`python -m bench payloads --part NAME` one of its figures.
"""

from __future__ import annotations

import argparse
import importlib

NAMES = (
    "decode", "sendfile", "latency", "ingest", "acked", "reading", "idle", "compaction", "dedupe",
    "scrub", "restart", "beside_kafka", "spark_read", "spark_latency", "spark_archive",
    "spark_sink", "raft_proposals", "raft_idle", "raft_failover", "raft_sim", "cluster_failover",
    "cluster_saturation", "cluster_acked", "cluster_latency", "cluster_catch_up",
    "cluster_partitions", "cluster_idle", "cluster_move", "cluster_rolling", "cluster_reassign",
    "cluster_unacked", "table_watchers", "table_oplog", "table_get", "table_set",
    "table_change", "table_memory", "groups", "group_commits", "idle_groups", "node_loss",
    "isr_change", "payloads", "payloads_ratis", "streams", "cluster_sim",
)  # fmt: skip
SIZES = {
    "streams": ("count", "nodes"),
    "cluster_idle": ("count",),
    "node_loss": ("count",),
    "isr_change": ("count",),
    "table_memory": ("count",),
    "payloads": ("part", "rounds"),
    "cluster_failover": ("rounds",),
    "cluster_acked": ("rounds",),
    "cluster_latency": ("rounds",),
    "cluster_catch_up": ("rounds",),
    "cluster_move": ("rounds",),
    "cluster_rolling": ("rounds",),
    "cluster_reassign": ("rounds",),
    "cluster_unacked": ("rounds",),
}
"""What else the measurements take."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--count", type=int, help="streams, partitions or keys to create")
    parser.add_argument("--nodes", type=int, help="nodes of the cluster, for `streams`")
    parser.add_argument("--rounds", type=int, help="of the measurements of a cluster")
    parser.add_argument("--part", help="one of the figures, for `payloads`")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no measurement is named {', '.join(sorted(unknown))}; there are {NAMES}")
    sizes = {name: getattr(arguments, name) for name in ("count", "nodes", "rounds", "part")}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    for name in arguments.names or NAMES:
        for size in sizes:
            if size not in SIZES.get(name, ()):
                parser.error(f"`{name}` takes no --{size}")
    for name in arguments.names or NAMES:
        print(f"== {name}", flush=True)
        importlib.import_module(f"bench.{name}").run(quick=arguments.quick, **sizes)


if __name__ == "__main__":
    main()
