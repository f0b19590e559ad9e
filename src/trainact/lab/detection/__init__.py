"""Object detection: Faster R-CNN with a VGG-16 on PASCAL VOC2007."""
