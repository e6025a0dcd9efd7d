"""Whole nodes in one process: the production code of a cluster, with faults drawn from a seed.

Each node is the production class `bascule.node.node.Node`, with its controller, Raft, replication,
logs, retention, compaction, groups, data streaming, listeners and NATS ingest. All nodes run on one
event loop with virtual time; their threads are greenlets on it. Simulated are the sockets and the
network between the nodes, the NATS server, the disks, the clocks, and what kills, pauses and cuts
off nodes. The databases of tables are SQLite's, on disks that lose what was not synced. Not
simulated, and not run, are SQLite under Raft (a store in memory takes its place), the exchange of
heartbeats (what they would say follows from the network), and HTTP: who asks for tables calls what
it serves.

```
run            draws the plan, runs the phases, checks the end
plan           what is drawn for a seed: sizes, times, the rate of each kind of fault
streams        the streams of a run, and what each promises
simulation     the cluster, its publishers and faults, and the phases of a run
environment    what they share: time, network, NATS, random choices
machine        one machine through the processes of its node: disk, clock, start, stop, kill
installation   puts the simulated world in the place of the real one in production modules
stand_ins      classes in place of some of a node's
publishers     publish over NATS, wait for acks, publish again
payloads/      clients that send and read payloads, and what must hold for these
consumers/     members of groups and readers over Kafka's protocol, and what must hold for them
tables/        tables: their databases, clients, watchers, copies, and what must hold for them
scenes         faults that wait for a moment which chance seldom brings
faults         kills, power losses, pauses, partitions, planned stops, disks, clocks
operators/     moves, rolling restarts, nodes that come and go, other settings, purges
trace          the last events as text
checkers/      what must hold at any time, and at the end
world/         the event loop, threads, sockets, selectors, disks, NATS
```
"""
