"""Networks by name, their first layers and their initial weights."""
