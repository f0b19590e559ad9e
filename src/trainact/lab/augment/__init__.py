"""Data augmentation: crops, policies, colour changes, mixup and CutMix."""
