"""DescribeLogDirs: the size of each replica on this node."""

from __future__ import annotations

from typing import Final

from bascule.kafka.handlers.context import Context, ServedPartition
from bascule.wire.messages.administration.describe_log_dirs import (
    DescribedLogDir,
    DescribedLogTopic,
    DescribedReplica,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

LOG_DIR: Final = "data"
"""The key of the data directory: its path is not for clients."""


def handle_describe_log_dirs(
    request: DescribeLogDirsRequest, context: Context
) -> DescribeLogDirsResponse:
    """The replicas that this node holds, or those of them that the request names."""
    streams = context.partitions.streams()
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for topic in request.topics:
            wanted.setdefault(topic.topic, set()).update(topic.partitions)
    names = sorted(streams) if wanted is None else sorted(wanted.keys() & streams.keys())
    topics = []
    for name in names:
        held = [
            replica
            for partition in streams[name]
            if (wanted is None or partition.index in wanted[name])
            and (replica := _replica(partition)) is not None
        ]
        if held:
            topics.append(DescribedLogTopic(name, held))
    return DescribeLogDirsResponse(results=[DescribedLogDir(log_dir=LOG_DIR, topics=topics)])


def _replica(partition: ServedPartition) -> DescribedReplica | None:
    log = partition.log
    if log is None or partition.deleted:
        return None
    lag = max(0, partition.high_watermark.offset - log.end.offset)
    return DescribedReplica(partition.index, log.size_bytes(), lag)
