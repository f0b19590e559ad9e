"""Small parts for trainers of others; each module imports its trainer, and nobody imports them."""
