"""Digests of a log by ranges of offsets, which replicas compare.

The log of a follower has the batches of its leader, byte for byte: base offsets, leader epochs,
CRCs. So equal records have equal batches, and a digest of the headers is one of the records, once
the CRC of each batch was checked. Compaction removes records, at another time on each replica. So a
range counts as *whole* only if every offset has its record, and no batch was changed by compaction.
Whole ranges of two replicas are equal or one of them is wrong. Other ranges are not compared.

A range has a power of two of offsets. A digest is the sum of the hashes of its batches, so that two
neighbouring ranges make one of twice the size by adding them.
"""

from bascule.storage.scrub.digests import Comparison, DigestedRanges, RangeDigests, compare

__all__ = ["Comparison", "DigestedRanges", "RangeDigests", "compare"]
