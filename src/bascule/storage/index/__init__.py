"""The two sparse indexes of a segment: pairs of numbers that never fall, in a file of blocks."""
