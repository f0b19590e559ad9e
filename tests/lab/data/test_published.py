"""Image counts of published data sets."""

from trainact.lab.data.published import count_images
from trainact.lab.recipes.recipe import DataFields


def test_images_are_counted_without_any_data():
    for fields, train, test in (
        (DataFields("cifar100"), 50_000, 10_000),
        (DataFields("cifar10", held_out=5000), 45_000, 10_000),
        (DataFields("cifar10", train_images=20_000, held_out=5000), 20_000, 10_000),
        (DataFields("cifar10", held_out=5000, evaluate_on="held-out"), 45_000, 5000),
        (DataFields("photos", test_images=80), 6000, 80),
    ):
        counts = count_images(fields)
        assert (counts.train, counts.test) == (train, test)
    assert count_images(DataFields("/some/folder")) is None
