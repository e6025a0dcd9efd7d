"""Simulated implementations of `host.api`, and a simulator of a Raft group, both from a seed.

The production code runs on them unchanged. `tests/conformance` checks that the simulated files keep
the guarantees of the real ones. They fail in the ways in which a machine may: they lose what was
not synced, in any order, and any call may fail.
"""
