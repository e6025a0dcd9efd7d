"""Raft as a library: a pure core, MicroRaft's log, and a store's contract."""
