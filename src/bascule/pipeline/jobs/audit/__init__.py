"""The audit: log against table, in tasks that compare rows and checksums."""
