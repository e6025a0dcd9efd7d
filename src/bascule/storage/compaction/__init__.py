"""Key compaction, as in Kafka: below the clean offset only the latest record of each key remains.

A log is clean below its *clean offset* and dirty from there to its last closed segment. A run reads
it in two passes::

    clean          | dirty                     | active
    0 ........ clean offset ........ map end ........ log end
                     pass 1: key -> latest offset (the key map)
    pass 2: copy the records to keep, segment by segment

Pass 1 reads the dirty part and stores the latest offset of each key in the key map, a table of
bounded size. If the table is full, the run ends its dirty part there, and the next run continues
from there. Pass 2 rewrites the log from its start to the end of the mapped part. It merges small
adjacent segments. A record is kept if

* it has no key, or it is the latest record of its key: its offset is at least the map's;
* and it is not a tombstone (a record with a key and without a value) whose delete horizon has
  passed and which all replicas of the partition have. The first run that keeps a tombstone sets the
  horizon to its time plus the tombstone retention. The horizon is stored in the batch: bit 6 of the
  attributes is set, and the horizon replaces the base timestamp (KIP-534). The timestamp deltas of
  the records are written against it. So a reader has at least the retention time to read the
  tombstone, and a replica that copies the log does not keep what the tombstone removes.

Offsets never change. A batch keeps its base offset, last offset delta and max timestamp, and gets a
new length, record count and CRC. A batch without records to keep is removed. A batch whose records
are all kept is copied unchanged.

The new segments are written and synced beside the old ones. Then the replacement manifest, one
file, lists the segments to remove and to add. Creating that file commits the replacement. Opening a
log completes a committed replacement and discards an uncommitted one
(`replacement_manifest.finish`). Readers continue with the files that they hold.

Compaction changes only whole segments below the checkpoint's recovery point. Recovery never scans,
syncs or truncates these segments.

A slot of the key map takes 24 bytes. 16 of them are the key's hash, computed with a secret seed. At
most four of five slots are used, so a key takes at least 30 bytes. The map grows by a factor of
four up to its bound. A fifth of the bound is for the old table, while its slots are moved to the
new one. 512 MiB hold 14.3 million keys. 10 million keys need a table of 410 MiB.
"""
