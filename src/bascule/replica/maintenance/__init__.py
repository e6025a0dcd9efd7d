"""Background maintenance of the logs: retention, compaction, checkpoints, CRC checks, timed syncs.

Each part is a loop of its own. It blocks neither the event loop nor the log writer: disk work runs
on other threads, and the log writer itself ends active segments.
"""
