"""Key compaction, as in Kafka: below the clean offset only the newest record of each key is left.

A log is clean below its *clean offset* and dirty from there to its last closed segment. A run goes
over it twice::

    clean          | dirty                     | active
    0 ........ clean offset ........ map end ........ log end
                     pass 1: key -> newest offset (the key map)
    pass 2: copy what stays, segment by segment

Pass 1 walks the dirty part and remembers for each key its newest offset, in a table of fixed
memory. Where the table is full the run's dirty part ends, and the next run goes on there. Pass 2
rewrites the log from its start to the map's end, small neighbours together. A record stays if

* it has no key, or is the newest of its key: its offset is at least the map's;
* and it is no tombstone (a key without a value) whose delete horizon has passed. The horizon is set
  when a tombstone is cleaned first, to that time plus its retention, and kept in its batch: bit 6
  of the attributes, in place of the base timestamp (KIP-534). So a reader that started before has
  the retention's time to see the tombstone.

Offsets never change: a batch keeps base offset, last offset delta and max timestamp, gets a new
length, record count and CRC, and vanishes when nothing is left of it. Batches that stay whole are
copied as they are.

The new segments are written and synced beside the old ones; then one file, the swap manifest, names
what goes and what comes. With that file the swap has happened, before it nothing has: opening the
log completes or discards what it finds (`swap.finish`). Readers go on with the files they hold.

Only whole segments below the checkpoint's recovery point are touched, so nothing that a recovery
scans, syncs or cuts is ever one of these.

A slot of the key map takes 24 bytes, 16 of them the key's hash under a secret seed, and at most
four slots of five are taken: 30 bytes a key at best. The map grows fourfold and never beyond its
bound, of which a fifth is for the old table while the new one is filled. 512 MiB hold 14.3 million
keys; 10 million keys are in a table of 410 MiB.
"""
