"""The key map: the latest offset of each key, in bounded memory."""
