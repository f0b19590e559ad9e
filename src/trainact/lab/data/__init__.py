"""Image data sets: names, files and downloads to labelled images."""

from trainact.lab.data.images import DataError, ImageData, Images, ImageStream, ImageTensor
from trainact.lab.data.sources import load_data

__all__ = ["DataError", "ImageData", "ImageStream", "ImageTensor", "Images", "load_data"]
