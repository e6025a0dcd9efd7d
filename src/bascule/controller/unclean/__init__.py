"""Partitions without a leader that the metadata can name: the logs of their replicas are compared.

`log_ends` asks nodes where their logs end. `elections` elects by it where all replicas in sync are
lost and a stream allows that, or where all of their machines went down, and `recovery` where an
operator does.
"""
