"""What other programs do to a table of Bascule, and how it is read afterwards.

    rewrite     OPTIMIZE, rewrite_data_files: new files with the same rows, in any order, perhaps of
                several stream partitions. `spans` lists such a file once for each stream partition,
                and `rows` filters and sorts its rows.
    row delete  DELETE, UPDATE, MERGE: new files without the rows, or the same files with lists of
                deleted row positions (deletion vectors, position deletes). `rows` leaves them out.
                `removals` finds the snapshot that removed given offsets.
    expiry      expire_snapshots, VACUUM, log clean-up: the snapshots that recorded the archived
                spans may be gone. The table's properties hold their union. If these are gone too,
                `spans` derives the spans from the rows.

Only Bascule appends rows to an archive.
"""
