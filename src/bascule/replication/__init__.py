"""Which records of a partition are committed. Pure: positions in, decisions out.

A partition has one replica on a single node, and the high watermark follows the log of that
replica. It never goes back.
"""
