"""Statistics from records: paired differences, speed-ups and their intervals."""
