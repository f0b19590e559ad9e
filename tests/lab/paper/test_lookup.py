"""Printed numbers are found by the lab's names; an unknown name is refused."""

import pytest

from trainact.errors import TrActValueError
from trainact.lab import paper
from trainact.lab.paper import find_printed
from trainact.lab.paper.claims import check_claims, read_claim
from trainact.lab.paper.values import parse_cell

RECIPES = [
    "cifar10-resnet18-adam",
    "cifar10-resnet18-adam-sgd",
    "cifar10-resnet18-sgd",
    "cifar10-vit",
    "cifar10-vit-lambda",
    "cifar10-vit-norms",
    "cifar10-vit-ranges",
    "cifar100-resnet18-adam",
    "cifar100-resnet18-sgd",
    "cifar100-table",
    "deit3-vit-b",
    "deit3-vit-b-finetune-a",
    "deit3-vit-b-finetune-b",
    "deit3-vit-s",
    "deit3-vit-s-800-finetune-a",
    "deit3-vit-s-800-finetune-b",
    "deit3-vit-s-finetune-a",
    "deit3-vit-s-finetune-b",
    "detection-voc2007",
    "imagenet-resnet18",
    "imagenet-resnet34",
    "imagenet-resnet50",
    "transfer-cars",
    "transfer-cars-adamw",
    "transfer-cifar10",
    "transfer-cifar10-adamw",
    "transfer-cifar100",
    "transfer-cifar100-adamw",
    "transfer-flowers102",
    "transfer-flowers102-adamw",
]


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (("cifar100-table", "squeezenet", "plain", 200, "top1"), "69.45 ± 0.30"),
        (("cifar100-table", "mobilenet", "tract-0.1", 200, "top5"), "89.12 ± 0.16"),
        (("cifar100-table", "inceptionresnetv2", "plain", 200, "top5"), "93.00 ± 0.18"),
        (("cifar100-table", "resnext101", "tract-0.1", 200, "top1"), "79.54 ± 0.25"),
        (("cifar100-table", "wideresnet-40-10", "plain", 200, "top1"), "78.93 ± 0.07"),
        (("cifar100-table", "stochasticdepth101", "tract-0.1", 133, "top5"), "94.55 ± 0.02"),
        (("cifar100-table", "vgg16", "tract-0.1", 133, "top1"), "72.11 ± 0.10"),
        (("cifar100-table", "average", "tract-0.1", 200, "top1"), "76.39 ± 0.24"),
        (("imagenet-resnet50", None, "plain", 30, "top5"), "90.70"),
        (("imagenet-resnet50", None, "tract-0.1", 60, "top1"), "75.68"),
        (("deit3-vit-s", None, "reported", 400, "top1"), "80.4"),
        (("deit3-vit-s", None, "tract-0.2", 800, "top5"), "95.98"),
        (("deit3-vit-b", None, "plain", 400, "top1"), "83.34"),
        (("deit3-vit-b-finetune-a", None, "tract", 50, "top1"), "83.58"),
        (("deit3-vit-s-800-finetune-b", None, "tract", 50, "top1"), "82.18"),
        (("deit3-vit-s", None, "tract", 400, "top1"), "81.50"),
        (("transfer-cars-adamw", None, "tract", 1000, "top1"), "91.07"),
        (("transfer-cars", None, "plain", 1000, "top1"), "90.44"),
        (("transfer-flowers102", None, "tract-0.2", 5000, "top1"), "95.58"),
        (("detection-voc2007", None, "tract-0.1", 12, "map"), "0.671 ± 0.004"),
        (("cifar10-vit", None, "tract-0.1", 100, "seconds"), "1197"),
        (("deit3-vit-s", None, "plain", 800, "minutes"), "8032"),
    ],
)
def test_a_number_is_found_by_the_names_of_the_lab(key, shown):
    assert find_printed(*key).show() == shown


@pytest.mark.parametrize(
    "key",
    [
        ("cifar10-resnet18-sgd", None, "plain", 100, "top1"),  # a figure shows it
        ("cifar100-table", "vgg16", "plain", 133, "top1"),  # plain was not run so
        ("imagenet-resnet50", None, "tract-0.05", 60, "top1"),  # λ is stated, and another
        ("deit3-vit-s", None, "reported", 400, "top5"),  # an empty cell
    ],
)
def test_what_is_not_printed_is_none(key):
    assert find_printed(*key) is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: paper.read_table("cifar-100"), "did you mean 'cifar100'"),
        (lambda: find_printed("cifar100-tabel", "vgg16", "plain", 200, "top1"), "'cifar100-table'"),
        (lambda: find_printed("cifar100-table", "vgg-16", "plain", 200, "top1"), "'vgg16'"),
        (
            lambda: find_printed("cifar100-table", None, "plain", 200, "top1"),
            "there are squeezenet",
        ),
        (lambda: find_printed("cifar10-vit", None, "plain", 200, "top-1"), "'top1'"),
        (lambda: paper.find_places("cifar10-vits"), "'cifar10-vit'"),
        (lambda: paper.read_hyperparameters("cifar10-vits"), "'cifar10-vit'"),
        (lambda: read_claim("time-vit"), "'time-vit-s'"),
        (lambda: check_claims({}, ["cifar100-better"]), "'cifar100-better-"),
        (lambda: parse_cell("69.45%"), "'69.45 ± 0.30'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(call, text):
    with pytest.raises(TrActValueError) as caught:
        call()
    assert text in str(caught.value)


def test_every_recipe_of_the_paper_has_its_place():
    assert paper.list_recipes() == RECIPES
    for recipe in RECIPES:
        assert paper.find_places(recipe)
    assert paper.find_places("cifar100-table") == [
        "Table 1 (tab:conv-cifar-100), Table 6 (tab:conv-cifar-100-std), Section 4.2 and B",
        "Table 7 (tab:conv-cifar-100-std-133), Section B",
    ]
    assert (
        paper.find_places("imagenet-resnet50")[1]
        == "Figure 5 (fig:resnet-50-imagenet), Section 4.3"
    )
