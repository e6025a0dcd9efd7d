"""One partition's role: what is committed. Pure: positions in, decisions out.

On one node a partition has one replica, and the high watermark follows that replica's own log.
"""
