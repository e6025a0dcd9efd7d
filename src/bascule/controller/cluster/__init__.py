"""The controller's part of a node in a cluster, which may be a cluster of one.

decision_log        what the log says of decisions
metadata_group      the Raft group: its state machine, and decisions, here or forwarded
controller          requests of clients and people
followed_decisions  waits until a decision is in force where it matters
image_follower      keeps this node as the image says
views               the cluster and its streams, for clients and people
groups              groups and their committed offsets, at any node
tables              tables, at any node
payloads            where payloads belong, and the records that link them
confirmation        what a leader may say only while there is no next one
repairs             failed partitions are opened again, or copied again
duties              what the controller does, and when this node must stop leading
sessions            the controller pings the nodes
silence             followers report a leader that does not answer them
isr_keeper          leaders propose who is in sync
upkeep              members of the group, replicas that move, preferred leaders
operations          what operators do to nodes, leaders and replicas
healing             damaged replicas copy the rest, full disks are left, scrubs compare replicas
image_files         the metadata of an earlier release, and reading it for tools
"""
