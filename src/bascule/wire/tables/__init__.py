"""Tables as publishers see them: keys and their subjects."""
