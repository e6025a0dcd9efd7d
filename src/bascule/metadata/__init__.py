"""The metadata of the cluster: one immutable image, changed only by applying commands in order.

    request + image --controller--> command --apply--> image'

A node has one number and one data directory; see `nodes`. A partition that moves has a target;
see `replicas`.

The controller decides on a request and may refuse it. `apply` carries out a decision and never
fails, so all nodes that apply the same commands have the same image.
Nothing here waits, reads a clock or uses a disk: times and ids are arguments.

An earlier release stored the image of a node alone in one file, as JSON.
`crc32c` is the checksum of `image` in canonical form
(sorted keys, no whitespace, ASCII):

    {"format": "bascule-metadata", "version": 1, "crc32c": "0123abcd",
     "image": {"streams": [{"name", "id", "created_ms", "paused", "config": {...}}],
               "deletions": [{"id", "name"}]}}

`deletions` lists deleted streams whose data may still be on the disk; it is omitted if empty.
"""
