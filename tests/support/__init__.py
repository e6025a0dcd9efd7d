"""What tests share: real processes, clients, batches, logs, the twins of hot modules."""
