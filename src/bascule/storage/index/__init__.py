"""The two sparse indexes of a segment: pairs of non-decreasing numbers, in a file of blocks."""
