"""Payloads of the cluster: where they belong, and the records that link them.

cluster_payloads    answers data streaming's questions from the metadata; removes leftovers
link_exchange       what nodes have measured of the ways between them
linking             has the leader of a partition append the record of a payload
"""

from __future__ import annotations

from bascule.controller.cluster.payloads.cluster_payloads import ClusterPayloads

__all__ = ["ClusterPayloads"]
