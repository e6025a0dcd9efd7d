"""Truncation and reset of a log: how a replica's log is made to agree with its leader's log.

``truncate_to`` (KIP-101, KIP-279). The new end is a batch boundary::

    segment A      | segment B              | segment C       |
    batch | batch  | batch | batch :: batch | batch | batch   |   before
    batch | batch  | batch | batch |        D                     after: D is new, empty and active
                                   ^ new end

    1  sync the log; lower `clean-offset`, `checkpoint` and `synced` to the new end, each synced
    2  create D under a temporary name
    3  replace `leader-epochs`, without the epochs that begin at the new end or later
    4  publish the shorter log in memory
    5  remove C, truncate and sync B, rename D to its final name, sync the directory

If step 1 or 2 fails, the log is unchanged: a checkpoint and a mark that are too low are still true.
If a later step fails, the log stops (`LogFailed`). Opening it again then finds whole batches from
the beginning up to a position between the new end and the former end. So the caller truncates again
after a crash, as it does after every start.

B takes no more batches. A byte that a reader may send never changes: either it is still there, or
the file ends before it. If nothing of B remains, D takes B's name, and readers of B keep the
removed file.

``start_at``. The file `reset` holds the checkpoint of the empty log. Once it is on the disk, the
old log is discarded: `reset.finish` removes every other file, creates the one segment and renames
`reset` to `checkpoint`. These steps are idempotent. Opening a log completes them.

``salvage``. A damaged log whose loss was accepted ends before its first damage.
"""
