"""Tables in a simulated cluster: their databases, clients, watchers and checks.

```
databases   SQLite on the disk of a machine: kills, losses of power, full and stalled disks
requests    what clients ask a node in the place of HTTP
client      reads and writes one table: linearizably, as a session, or whatever a replica has
watcher     is told of the changes of one table, over all nodes
follower    keeps a copy of one table by asking for pages of changes
checks      what clients and watchers of one table saw, and what each replica has of it
contents    reads the databases and oplogs of replicas
simulated_tables    all tables of a run, and whether everybody agrees at the end
```
"""
