"""Measurements, as ratios of paired runs; `python -m bench NAME` (see README.md)."""
