"""The audit job: compares rows and checksums of the log with those of the table."""
