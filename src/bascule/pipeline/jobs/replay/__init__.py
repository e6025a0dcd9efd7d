"""The replay: rows of a lake table as messages, published once however often it is run."""
