"""Shared by tests: real processes, clients, batches, logs, twins of hot modules."""
