"""What does a run leave? Records, checkpoints, failures and events."""
