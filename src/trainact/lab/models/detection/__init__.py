"""Faster R-CNN with a VGG-16 backbone, and the operators it needs."""
