"""The metadata in files other than the log of a running group.

earlier_image   takes over the metadata of an earlier release
stored_image    reads the metadata from a node's files, for tools
"""
