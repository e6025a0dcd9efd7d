"""The scrubber: reads every log of this node once a period, checks all CRCs, and digests ranges.

A damaged log is reported through `Partitions.on_damaged`. Where another replica has all records it
stops and heals; see `controller.cluster.healing`. What has been read is noted in `scrub.json`, so
that a restart does not begin again. The digests are in memory only.

The payloads of its records are read with a log. A damaged or lost one is reported through
`Partitions.on_payload_damaged`, and fetched again from another replica; see `datastream`.

scrubber    the thread and what it reads next
schedule    when each log is due
progress    how far each log was read, on the disk
payloads    the payloads of the records that a pass has read
report      what a pass over one log has found
"""

from bascule.replica.scrub.report import ScrubbedLog, ScrubReport, ScrubState
from bascule.replica.scrub.scrubber import Scrubber, ScrubLimits

__all__ = ["ScrubLimits", "ScrubReport", "ScrubState", "ScrubbedLog", "Scrubber"]
