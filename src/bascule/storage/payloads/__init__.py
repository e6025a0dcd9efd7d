"""The payloads of one partition: files beside its log, one for each.

    payloads/<id>.open                              being received
    payloads/<id>.marks                             how much of that is right
    payloads/<id>-<crc>.whole                       whole and synced; no record of the log names it
    payloads/<offset>-<id>-<crc>.linked             a record of the log names it, at this offset;
                                                    empty: a further record of the same payload

    payloads/<id>-<crc>.sums                        the checksums of its blocks, if it has several

`id` has 32 hexadecimal digits, `crc` is the CRC-32C of the content, 8 digits, and `offset` has 20
decimal digits. A payload's file is the content and nothing else. Its name is all that is known of
it, so a rename is the change from one state to the next.

payload_files    the directory: what is received, whole, linked, damaged or lost
stored_payloads  the whole payloads, the records that name them, and the names of their files
payload_log      a log whose records may have payloads
part_marks       how much of a payload that is received in part is right
block_sums       the checksums of blocks
verified_file    reads that compare what they read
block_steps      a read of a whole payload in steps, so that it may stop

Promises:

* A log holds a link only if its payload is whole and synced on the same disk (`PayloadLog`).
* A payload is removed after the last record that names it is gone, and after that is on the disk: a
  crash between leaves a file that the next `sweep` removes.
* A crash between the append of a link and the rename leaves a whole file; `PayloadLog.open` finds
  its record, which no checkpoint has passed, and renames it.
* A record names its payload by id, size and checksum. Several payloads with one id, as after other
  content was sent under it, have a file each.
* A rename that fails when records are appended or truncated stops neither. It is tried again, and
  no checkpoint is written before it is done.
* Who reads through `verified_file` gets the bytes that were sent, or `PayloadDamaged`. A damaged
  file is replaced by rename, so it is the old one or the new one after a crash.
"""
