"""Oracles: one class for each invariant of a Raft group, each told what happens while it happens.

A simulator runs nodes and tells a `Checkers` of every event; a `Checker` that sees its invariant
broken raises `InvariantBroken` at once, so that the last events before it are the explanation.
Checkers look at what a node hands over (`Ready`), at what leaves it and at what its disk holds, not
at what it means to do, and each event costs a few dictionary look-ups: no log is ever scanned.

`standard()` makes one of each. `docs/invariants.md` has the text of each under its name.
"""
