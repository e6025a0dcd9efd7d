"""One partition's log on disk: append, sync, read, and open again after anything but lost disks.

A log is a directory. Its records are in segments, files of whole record batches back to back, named
for the offset of their first record; beside each lie two sparse indexes::

    00000000000000000000.log         | batch | batch | batch | ...
    00000000000000000000.index       offset    -> position, about one entry per 4 KiB of log
    00000000000000000000.timeindex   timestamp -> offset
    leader-epochs                    leader epoch -> its first offset
    checkpoint                       what was known to be on the disk, and the high watermark

The bytes are in docs/formats.md. Who does what:

    append      one thread: one write per batch at the end of the last segment
    sync        another thread: fdatasync of everything appended before the call
    checkpoint  the syncing thread: index tails, then the checkpoint file
    reads       any thread beside both

Nothing here locks. State is published by single assignments of immutable values, and what a reader
holds stays true: indexes only grow, positions below a published end never change, a file closes
with its last reference.

Promises:

* A batch is visible whole or not at all, also when the disk fills up in the middle of it.
* What `sync` confirmed is there after a crash, or opening refuses with CorruptData.
* A failed sync stops the log for good (`LogFailed`): the kernel may have dropped the bytes it could
  not write, so trying again would confirm what is lost.

Opening trusts what lies below the checkpoint's recovery point and reads every byte above it. The
first batch there that is not valid ends the log, since that is what a write cut short looks like;
but where a valid batch follows it that continues the offsets, nothing tells a page lost before
its sync from a damaged batch that was acknowledged, and opening refuses instead of cutting.
"""
