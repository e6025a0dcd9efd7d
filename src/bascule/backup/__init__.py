"""Copies of streams outside the cluster, and new clusters made of them.

manifest         what a backup consists of
repository       the place where backups are: a directory, or a bucket
batch_checks     whole batches: cut them off, check them
sources          what a backup is read from
cluster_source   reads the streams of a running cluster
disk_source      reads the streams in the data directory of a node that does not run
payload_copying  copies the payloads of the records of one partition
taking           from a source into a repository, incrementally
verifying        reads a backup again
restoring        from a repository into a new data directory
"""
