"""The node's statistics as Prometheus metrics.

statistics         every counter of the node as one nested mapping
http_statistics    counters of the HTTP listener itself
families           name, help text and type of each metric
exposition         a snapshot as Prometheus's text format
"""
