"""One partition's log on disk: append, sync, read, truncate, and recover after a crash.

A log is a directory. Its records are in segments. A segment is a file of whole record batches, back
to back. Its name is the offset of its first record. Each segment has two sparse indexes::

    00000000000000000000.log         | batch | batch | batch | ...
    00000000000000000000.index       offset    -> position, about one entry per 4 KiB of log
    00000000000000000000.timeindex   timestamp -> offset
    leader-epochs                    leader epoch -> its first offset
    checkpoint                       recovery point, high watermark and log start
    synced                           the position up to which the log is synced

docs/formats.md describes the bytes. `partition_log` has the log, `payloads` one with files beside
it, `recovery` opens it, `retention` says what is beyond its limits, `scrub` digests ranges of it.
These threads call the log:

    append, append_as_follower, roll   one thread: one write at the end of the last segment
    truncate_to, start_at              the same thread, while none of the next two runs
    sync                               another thread: fdatasync of everything appended before
    maintenance                        one thread at a time: checkpoints, advance of the log start,
                                       segment replacement by compaction
    reads                              any thread, concurrently with all of them

Each change of state is one assignment of an immutable value. What a reader holds stays valid:
indexes only grow, bytes below a published end never change, and a file is closed with its last
reference. There are few locks: one is held for the few lines that replace the tuple of segments,
one for those that change the payloads, and one for a whole truncation or reset. For the latter
nobody waits but a reader that has found damage, which may be that of a file being truncated.

A leader appends batches that it has stamped. A follower appends the leader's batches unchanged: it
keeps the leader's offsets, leader epochs and times. Offsets that compaction removed on the leader
are missing on the follower, too. After a change of leader a follower first removes the batches that
the new leader does not have (`truncation`). Readers may hold bytes that are replaced or removed. So
such an operation creates new files in place of old ones, or truncates a file that is never written
again. A reader then gets the old bytes or an early end of file, never different bytes.

Promises:

* A batch is visible as a whole or not at all, even if the disk fills up while it is written.
* Batches that `sync` confirmed are present after a crash. Otherwise opening the log raises
  CorruptData.
* A failed sync stops the log permanently (`LogFailed`). The kernel may have dropped the bytes that
  it could not write, so a second sync could confirm lost bytes.
* Batches that `truncate_to` or `start_at` removed do not come back after the call has returned.

Opening trusts the bytes below the checkpoint's recovery point and reads every byte above it. The
synced mark is written after each sync. Opening refuses any damage below that mark. Above it the log
ends at the first invalid batch. The remaining bytes were never confirmed, and opening removes them.
"""
