"""Test-time views, against a loop over the six views of each image."""

import torch
from torch import nn

from trainact.lab.cost.estimates import VIEWS
from trainact.lab.training.views import ViewAverage


def list_views(image):
    """Return the views [C, H, W] of an image and their weights."""
    height, width = image.shape[1:]

    def shift(down, right):
        rows = [reflect(i - down, height) for i in range(height)]
        columns = [reflect(j - right, width) for j in range(width)]
        return image[:, rows][:, :, columns]

    def reflect(place, size):
        return -place if place < 0 else 2 * (size - 1) - place if place >= size else place

    views = []
    for view, weight in ((image, 1 / 4), (shift(1, 1), 1 / 8), (shift(-1, -1), 1 / 8)):
        mirrored = torch.stack([view[:, :, width - 1 - j] for j in range(width)], dim=2)
        views += [(view, weight), (mirrored, weight)]
    return views


def test_the_logits_are_the_weighted_mean_over_the_views(cifar_images):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 5, stride=3), nn.ReLU(), nn.Flatten(),
                            nn.Linear(4 * 100, 7))  # fmt: skip
    images = cifar_images[:5].float() / 255
    expected = []
    with torch.no_grad():
        for image in images:
            views = list_views(image)
            assert len(views) == VIEWS
            expected.append(sum(weight * network(view[None])[0] for view, weight in views))
        found = ViewAverage(network)(images)
    torch.testing.assert_close(found, torch.stack(expected))
    assert not torch.allclose(found, network(images), atol=1e-3)


def test_the_network_keeps_its_mode():
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).eval()
    views = ViewAverage(network)
    assert not network.training
    assert not views.training
