"""The statistics of the node as Prometheus metrics.

statistics         all counters of the node as one nested mapping
http_statistics    counters of the HTTP listener itself
metric_family      one metric: its name, help text and type
families           all metrics; those of data streaming and of tables are in
payload_families   and
table_families
exposition         a snapshot in the Prometheus text format
"""
