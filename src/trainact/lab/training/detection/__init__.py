"""Training and evaluating an object detector."""
