"""One run, from a recipe to a record."""
