"""What the cluster agrees on: one immutable image, changed only by applying commands in order.

    request + image --controller--> command --apply--> image'

The controller decides, and may refuse; `apply` only carries out what was decided and never fails,
so that every node which applies the same commands holds the same image. A single node applies its
own commands at once and keeps the image in one file; a cluster will agree on their order first.
Nothing here waits, reads a clock or touches a disk: times and ids are handed in.

The file is JSON, so that an operator can read it. `crc32c` covers `image` in canonical form
(keys sorted, no blanks, ASCII):

    {"format": "bascule-metadata", "version": 1, "crc32c": "0123abcd",
     "image": {"streams": [{"name", "id", "created_ms", "paused", "config": {...}}],
               "deletions": [{"id", "name"}]}}

`deletions` names deleted streams whose data may still be on the disk; without any it is left out.
"""
