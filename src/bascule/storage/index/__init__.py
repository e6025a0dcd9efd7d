"""The two sparse indexes of a segment: pairs of non-decreasing numbers, in a file of blocks.

sparse_index    what both are; `offset_index` and `time_index` look up in them
segment_lookup  finds the batch of an offset from an entry on
header_checks   checks headers, which no CRC covers, from an entry on
trusted_file    says of which segments the headers need no check
"""
