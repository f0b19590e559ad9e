"""Image data sets by name."""
