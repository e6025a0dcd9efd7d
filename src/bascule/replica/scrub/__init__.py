"""The scrubber: reads every log of this node once a period, checks all CRCs, and digests ranges.

A damaged log is reported through `Partitions.on_damaged`. Where another replica has all records it
stops and heals; see `controller.cluster.healing`. What has been read is noted in `scrub.json`, so
that a restart does not begin again. The digests are in memory only.

scrubber    the thread and what it reads next
progress    how far each log was read, on the disk
report      what a pass over one log has found
"""

from bascule.replica.scrub.report import ScrubbedLog, ScrubReport, ScrubState
from bascule.replica.scrub.scrubber import Scrubber, ScrubLimits

__all__ = ["ScrubLimits", "ScrubReport", "ScrubState", "ScrubbedLog", "Scrubber"]
