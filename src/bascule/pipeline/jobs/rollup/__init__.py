"""The rollup job: SQL aggregates over time windows of a stream.

    readStream("bascule") -> + event time -> withWatermark -> view `records` -> the SQL
                                                                |
                   lake table, one commit per micro-batch  <----+----->   stream, by the sink
                   (idempotent by query id and batch id)

The state lives in Spark's checkpoint. After kill -9 a run continues: Spark repeats a planned batch
from the same offsets with the same state and number, and the table accepts each batch number once.
Without its checkpoint a rollup starts again as a new query and counts existing rows again. Use
another table in that case.

In mode `append` a window is written once, when the watermark has passed its end. Later records are
dropped and counted. In mode `update` every batch writes the windows it changed. The table then
holds several versions of a window; the greatest value of the column `batch` is the latest.
"""
