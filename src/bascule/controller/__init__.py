"""Proposals in, reconcile out: the streams of this node follow the metadata image."""
