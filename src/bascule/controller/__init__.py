"""Proposals in, reconcile out: requests become commands, and the node follows the image.

::

    request -> controller    metadata.controller decides; the command is applied
            -> image_store   the new image on the disk: from here on the decision is true
            -> plan          what this node has to do to be as the image says; pure
            -> reconciler    does it: opens, configures, subscribes, closes, removes

The image is written first. Whatever fails after that is tried again, after the next command and by
a timer, until the node is as the image says; nothing is undone. Steps are idempotent.

What it never does: remove data of a stream whose deletion the image does not record. A directory
that belongs to no known stream is put aside.
"""
