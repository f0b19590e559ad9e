"""Test-time views: the mean logits of an image, its mirror image and small translations."""

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ViewAverage"]


class ViewAverage(nn.Module):
    """A classifier that averages the logits of six views of each image.

    Half of the weight is on the image and its mirror image. The other half is on the image and its
    mirror image moved by one pixel along the diagonal, up and left or down and right; the border is
    filled by reflection.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean logits [N, classes] of images [N, C, H, W]."""
        padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
        still = self._average_mirrors(images)
        down_right = self._average_mirrors(padded[:, :, :-2, :-2])
        up_left = self._average_mirrors(padded[:, :, 2:, 2:])
        return still / 2 + (down_right + up_left) / 4

    def _average_mirrors(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images).float() + self.network(images.flip(3)).float()
        return logits / 2
