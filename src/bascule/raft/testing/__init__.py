"""Test kit for Raft stores.

`conformance` is the test suite that every `RaftStore` passes. `memory_store` is a store in memory
that crashes and fails on request; the simulator uses it as its disk. `store_model` says what a
store may contain after each call and after a crash, and `random_calls` draws the calls.
"""
