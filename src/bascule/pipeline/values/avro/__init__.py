"""Avro values: one datum per value, without a file header.

[datum]                                         plain
C3 01 [fingerprint, 8 bytes, LE] [datum]        a single object of the same schema
00 [schema id, 4 bytes, BE] [datum]             with option avroConfluent
"""
