"""The statistics of the node as Prometheus metrics.

statistics         all counters of the node as one nested mapping
http_statistics    counters of the HTTP listener itself
metric_family      one metric: its name, help text and type
families           all metrics but those of data streaming
payload_families   the metrics of data streaming
exposition         a snapshot in the Prometheus text format
"""
