"""Fakes of the host with a seed: the production code runs on them unchanged.

What they promise is what the real ones promise, held by tests/conformance on both, and what they
may do wrong is what a machine may do wrong: lose what was not synced, in any order; fail any call.
"""
