"""The oplog of a table: which keys have changed since an operation, without reading the log.

A table has the latest value of each key, and a log that is compacted does not tell any more what
has changed since when. The oplog has one record of 25 bytes for each operation, without its value.
What a reader gets is the last state of each key that has changed, once, from the table::

    0              8              16             24          25
    +--------------+--------------+--------------+-----------+
    | operation id | key id       | table id     | operation |   little endian
    | u64          | u64          | u64          | u8        |
    +--------------+--------------+--------------+-----------+

The *operation id* is the offset of the record in the log plus 1: the leader gives it, each replica
has the same, and 0 is nothing. The *key id* is the number of the key's row in the table of this
replica. The *table id* is the first 8 bytes of the stream's id.

A file is a header and records, in blocks of 256. The last record of a block is a *check*: a control
operation, which has no key id. It has the id of the record before it, and in the place of the key
id the CRC32C of the block's other records, begun with that of the block before, the first with that
of the header. So ids never decrease within a file and only rise between operations, a place is
found by binary search, and every byte that is read is covered.

What an oplog promises: it has every operation from the first id of its first file on, up to the
position of the table. That is so at any moment, and after any crash, because

* records are written before the transaction of the table that has their rows commits,
* the transaction says where the oplog ends for it: file, records, and CRC32C (a `Mark`). Readers
  go by the mark of the snapshot that they read rows of, and never beyond,
* what is beyond the mark when the oplog is opened belongs to no transaction, and is cut,
* what is missing or damaged before the mark, as after a power loss, is made up from the table: its
  rows with the versions in question are the last state of just these keys. The log could not give
  that: compaction may have removed what removed a key. Where a file is missing the oplog begins
  anew behind the position of the table, and so it does where the log had records that are gone,
* the first id of an oplog that begins anew says so, and who asks for older changes gets all rows.

So the mark needs no sync of its own. Files are synced as they grow, when the next one is begun, and
when the node stops. A mark that outlives its records is one of a damaged oplog, and is seen as one.

Paging loses nothing. Say that a follower has, of each key whose last operation is at most `p`, that
last state; the next page begins at `p`. The page is read in one snapshot of the table, at position
T. Let a key's last operation in it be `o`, with `p < o <= T`. The oplog has `o`, and nothing later
of that key, so the key is found once, at `o`. Keys are sent in the order of `o`, and the page ends
at some `q`, so each key with `o <= q` is sent. A key that changes later has its last operation
beyond T, hence beyond `q`, and belongs to a later page. Pages of all rows are read in the order of
keys, from snapshots that are not older than the position B at which the first one began. What
changes after its key was passed has an operation beyond B, and from B on the follower goes on.

All that is of one log. Where records are lost (an unclean election), a follower at `q` may lack a
key with `o <= q` in the log that is left: the page left it to a later one, as its last operation
was among the lost. So a follower also says the highest T of its pages, and gets all rows where the
log does not have T, with its leader epoch.
"""
