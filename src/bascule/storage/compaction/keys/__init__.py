"""The key map: which record of each key is the newest, in bounded memory."""
