"""The messages of administration: topics, their settings and their records."""
