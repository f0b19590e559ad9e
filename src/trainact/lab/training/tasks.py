"""Which session trains on which data: classifiers on labelled images, detectors on scenes."""

from typing import Any

from trainact.lab.data.objects import DetectionData
from trainact.lab.training.session import Session

__all__ = ["find_session"]


def find_session(data: Any) -> type[Session]:
    """Return the class of the sessions that train on this data set."""
    if isinstance(data, DetectionData):
        from trainact.lab.training.detection.session import DetectionSession  # it needs torchvision

        return DetectionSession
    return Session
