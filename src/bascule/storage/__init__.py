"""One partition's log on disk: append, sync, read, truncate, and recover after a crash.

A log is a directory. Its records are in segments, files of whole record batches back to back, named
for the offset of their first record. Each segment has two sparse indexes::

    00000000000000000000.log         | batch | batch | batch | ...
    00000000000000000000.index       offset    -> position, about one entry per 4 KiB of log
    00000000000000000000.timeindex   timestamp -> offset
    leader-epochs                    leader epoch -> its first offset
    checkpoint                       what was known to be on the disk, and the high watermark
    synced                           what is known to be on the disk

The bytes are in docs/formats.md. Who does what:

    append, append_as_follower, roll   one thread: one write at the end of the last segment
    truncate_to, start_at              the same thread, while none of the next two runs
    sync                               another thread: fdatasync of everything appended before
    maintenance                        one thread at a time: checkpoints, a later start, segment
                                       replacement by compaction
    reads                              any thread, beside all of them

State is published by single assignments of immutable values, and what a reader holds stays true:
indexes only grow, positions below a published end never change, a file closes with its last
reference. The one lock, `guard`, is held for the few lines that replace the tuple of segments.

A leader appends batches that it has stamped. A follower appends the leader's batches unchanged:
offsets, leader epochs and times are the leader's, and offsets that compaction removed on the leader
are missing here, too. After a change of the leader a follower first removes what the new leader
does not have (`truncation`). What replaces or removes bytes that readers may hold puts new files in
place of old ones, or shortens a file that is never written again: a reader sees the bytes of before
or an early end of file, never other bytes.

Promises:

* A batch is visible whole or not at all, also when the disk fills up in the middle of it.
* What `sync` confirmed is there after a crash, or opening refuses with CorruptData.
* A failed sync stops the log for good (`LogFailed`): the kernel may have dropped the bytes it could
  not write, so a second sync would confirm what is lost.
* What `truncate_to` and `start_at` removed does not come back after they have returned.

Opening trusts what is below the checkpoint's recovery point and reads every byte above it. Below
the synced mark, which follows every sync, any damage is refused. Above it the first batch that is
not valid ends the log, and the rest, which was never confirmed, is removed.
"""
