"""Applies requests to the metadata image, and brings this node to the state of the image.

::

    request -> cluster       the controller of the cluster decides, and the metadata group agrees
            -> plan          derives the steps from the node's state to the image; pure
            -> reconciler    carries them out: open, configure, subscribe, close, remove;
                             `replica_removal` removes a replica that has moved away
            -> roles         has partitions lead or follow; `handover` between living nodes
            -> purges        has leaders and followers move the starts of their logs
            -> announcer     tells the streams of the image to other nodes on the same NATS

Promises: a request has no effect before the metadata group has committed it. A step that fails
after that is tried again, with the next command and by a timer, until the node's state matches the
image. Steps are idempotent and are not undone. The one exception: a creation whose subscription
NATS refuses is followed by a deletion.

It removes the data of a stream whose deletion the image records, or which an earlier image had
while this node runs. A directory that belongs to no known stream is moved to `aside/`.

Files below the data directory::

    raft/                         the log of the metadata group
    layout.json                   the version of the directory layout
    streams/<name>/<partition>/   one log
    removed/<stream id>/          data of a deleted stream until it is removed
    removed/<stream id>-<n>/      data of a replica that has moved away, likewise
    aside/<name>.<n>/             a directory of no known stream
"""
