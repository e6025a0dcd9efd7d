"""What data streaming decides without any input or output: routes, positions, progress."""
