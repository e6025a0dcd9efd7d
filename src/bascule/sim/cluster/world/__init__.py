"""What takes the place of the operating system and of NATS under the nodes of a simulation."""
