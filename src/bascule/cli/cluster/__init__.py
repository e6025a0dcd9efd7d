"""`bascule cluster ...` and `bascule node ...`: who is in the cluster, and what is wrong in it."""

from bascule.cli.cluster.commands import cluster, node

__all__ = ["cluster", "node"]
