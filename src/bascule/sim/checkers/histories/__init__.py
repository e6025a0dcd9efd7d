"""Checks of what clients saw: whole histories, and sessions of a table."""
