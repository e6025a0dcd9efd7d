"""Cutting the end of a log off, or all of it: what a replica does to agree with its leader.

``truncate_to`` (KIP-101, KIP-279). The cut is at a batch boundary::

    segment A      | segment B              | segment C       |
    batch | batch  | batch | batch :: batch | batch | batch   |   before
    batch | batch  | batch | batch |        D                     after: D is new, empty and active
                                   ^ cut

    1  sync the log; lower `clean-offset`, `checkpoint` and `synced` to the cut, each on the disk
    2  create D under a temporary name
    3  replace `leader-epochs`, without the epochs that begin at the cut or later
    4  publish the shorter log in memory
    5  remove C, then shorten and sync B, then give D its name and sync the directory

Up to step 2 a failure leaves the log as it was: a checkpoint and a mark that are too low are still
true. From step 3 on a failure stops the log, and opening it again takes what is there: whole
batches from the beginning up to somewhere between the cut and the former end. So the caller
truncates again after a crash, as it does after every start.

B takes no more batches. A byte that a reader may send never changes: it is there, or the file ends
before it. Where nothing of B stays, D takes B's name, and readers of B keep the removed file.

``start_at``. The file `reset` holds the checkpoint of the empty log. With it on the disk the old
log is gone: `reset.finish` removes every other file, creates the one segment and renames `reset` to
`checkpoint`. All of it may be repeated, and opening does so.
"""
