"""A whole Raft group in one thread, under faults drawn from a seed.

The nodes are production's `bascule.raft.node.Node`, their stores production's contract; simulated
are the network, the disks' latency and failures, the clocks, the machines' lives, the clients and
the operator who changes members. A run has two phases. In the first anything may go wrong, except
what no Raft group survives: a majority of disks destroyed, a member back under its id without what
it had promised. In the second nothing goes wrong any more and progress is owed within a bound.

```
run       draws the plan, runs the phases, judges
plan      what was drawn for a seed: sizes, times, how often what goes wrong
cluster   the members, who of them leads, and how tickets were answered
member    one machine through its lives: the driver of a node
device    its disk: one queue, answers later than asked
state     the state machine: a small map with chunked snapshots
clients   simulated users and what they were told
operator  changes of members, transfers
faults    crashes, pauses, cuts, clocks, disks
trace     the last events in words
```
"""
