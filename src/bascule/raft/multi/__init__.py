"""Many groups in one process: one tick, one heartbeat per peer, no message for a group at rest."""
