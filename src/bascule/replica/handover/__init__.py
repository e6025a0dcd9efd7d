"""What a node does with messages that it receives while the leadership of a partition changes.

    held_messages   the batches that arrive before the node leads, in bounded memory
    takeover        the end of one leader's appends, and the beginning of the next one's
    comparison      which of their records the log has already
    _hot            the contents of records, as keys of a table

A new leader subscribes before it leads. So the old leader and the new one may both receive a
message, and the new one may have it in its log already. It holds what arrives until it leads. Then
it compares that with the end of its log, and appends the rest, in the order of arrival.

Contents are compared: key, value and headers, which include subject and reply where the stream
stores them. Each record of the log accounts for one message at most. So for each content the log
has as many records as the larger of the numbers that the two leaders have received. Messages with
ids are recognized by content, too, and those that are not by the dedupe window.

Only records that have come into this node's log since it was about to subscribe are compared: older
ones were received by their leader before this node could receive anything. No clock is involved.

Everything here runs on the log writer thread.
"""
