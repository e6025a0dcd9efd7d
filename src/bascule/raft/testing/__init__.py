"""The durable side of a group: what a store promises, and how that is tested.

`contract` is the promise, `memory` keeps it in memory and crashes on request, `conformance` is the
suite that every store passes; the one for production, on SQLite, is `bascule.raft_driver`'s, since
nothing below this package touches a disk.
"""
