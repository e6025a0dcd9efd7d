"""Aggregates over windows of time, declared in SQL over a stream.

    readStream("bascule") -> + event time -> withWatermark -> view `records` -> the SQL
                                                                |
                   lake table, one commit a micro-batch   <-----+----->   stream, by the sink
                   (idempotent by query id and batch id)

State lives in Spark's checkpoint, so after kill -9 a run goes on where it was: a batch that was
planned is repeated from the same offsets with the same state and has the same number, and the table
takes a number once. A lost checkpoint is a lost state: a rollup then begins anew, as a new query,
and what its table holds already is counted again. Give such a run another table.

In `append` mode a window is written once, when the watermark has passed its end; records later than
the watermark are dropped, and counted. In `update` mode every batch writes the windows it changed:
a table then holds several versions of a window, told apart by the column `batch`, greatest last.
"""
