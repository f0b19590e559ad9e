"""Image data sets: names, files and downloads to labelled images."""

from typing import TYPE_CHECKING

from trainact.lazy_names import make_getattr

if TYPE_CHECKING:
    from trainact.lab.data.images import DataError, ImageData, Images, ImageStream, ImageTensor
    from trainact.lab.data.sources import load_data

__all__ = ["DataError", "ImageData", "ImageStream", "ImageTensor", "Images", "load_data"]

if not TYPE_CHECKING:
    __getattr__ = make_getattr(__name__, {"images": __all__[:-1], "sources": ["load_data"]})
