"""The last value of each key of an archived stream, in a table of its own."""
