"""One run of a training loop that is the user's own: the hooks that it calls, and its record."""
