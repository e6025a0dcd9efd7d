"""One partition's log on disk: append, sync, read, and open again after anything but lost disks.

A log is a directory. Its records are in segments, files of whole record batches back to back, named
for the offset of their first record; beside each lie two sparse indexes::

    00000000000000000000.log         | batch | batch | batch | ...
    00000000000000000000.index       offset    -> position, about one entry per 4 KiB of log
    00000000000000000000.timeindex   timestamp -> offset
    leader-epochs                    leader epoch -> its first offset
    checkpoint                       what was known to be on the disk, and the high watermark
    synced                           what is known to be on the disk

The bytes are in docs/formats.md. Who does what:

    append, roll      one thread: one write per batch at the end of the last segment
    sync              another thread: fdatasync of everything appended before the call
    upkeep            one thread at a time: checkpoints, a later start, swaps of cleaned segments
    reads             any thread beside all of them

State is published by single assignments of immutable values, and what a reader holds stays true:
indexes only grow, positions below a published end never change, a file closes with its last
reference. The one lock, `guard`, is held for the few lines that replace the tuple of segments.

Promises:

* A batch is visible whole or not at all, also when the disk fills up in the middle of it.
* What `sync` confirmed is there after a crash, or opening refuses with CorruptData.
* A failed sync stops the log for good (`LogFailed`): the kernel may have dropped the bytes it could
  not write, so trying again would confirm what is lost.

Opening trusts what lies below the checkpoint's recovery point and reads every byte above it. Below
the synced mark, which follows every sync, anything wrong is refused; above it the first batch that
is not valid ends the log, and the rest, which nobody was promised, is cut.
"""
