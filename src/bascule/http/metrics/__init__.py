"""The statistics of the node as Prometheus metrics.

statistics         all counters of the node as one nested mapping
http_statistics    counters of the HTTP listener itself
families           name, help text and type of each metric
exposition         a snapshot in the Prometheus text format
"""
