"""The archive job: it plans offsets, cuts them into tasks, writes data files and commits them."""
