"""The compact-lake job: the last value of each key of an archived stream, in another table."""
