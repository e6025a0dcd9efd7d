"""The archive: which offsets, which tasks, what they write, how it is committed."""
