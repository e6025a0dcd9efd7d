"""A whole Raft group in one thread, with faults drawn from a seed.

The nodes are the production class `bascule.raft.node.RaftNode`, and the stores keep the production
contract. Simulated are the network, the latency and failures of disks, the clocks, crashes and
restarts of machines, the clients, and the operator who changes members. A run has two phases. In
the first, everything may fail except what no Raft group survives: a majority of disks destroyed, or
a member that returns under its id without its votes. In the second there are no faults, and the
group has to make progress within a bound.

```
run            draws the plan, runs the phases, checks the end
plan           what is drawn for a seed: sizes, times, the rate of each kind of fault
environment    what all machines of a run share: time, network, PRNG, checkers
cluster        the machines of a group, and who leads
member         one machine through crashes and restarts: the driver of a node
disk_queue     its disk: one queue of writes, completed later
state          the state machine: a small map with snapshots in chunks
clients        simulated clients and what they were answered
burst_clients  bursts of proposals and reads to one leader
operator       changes of members, transfers
faults         crashes, pauses, partitions, clocks, disks
trace          the last events as text
```
"""
