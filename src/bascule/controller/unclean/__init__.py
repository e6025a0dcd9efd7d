"""Partitions whose replicas in sync are all lost: which replica leads although it was not in sync.

`log_ends` asks nodes where their logs end, `elections` elects by it where a stream allows that, and
`recovery` where an operator does.
"""
