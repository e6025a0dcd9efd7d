"""The controller's part of a node in a cluster.

metadata_group   the Raft group: its state machine, and decisions, here or forwarded
controller       requests; this node follows the image
views            the cluster and its streams, for clients and people
duties           what the controller does, and when this node must stop leading
sessions         the controller pings the nodes
silence          followers report a leader that does not answer them
isr_keeper       leaders propose who is in sync
"""
