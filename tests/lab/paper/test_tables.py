"""The paper's tables are complete, and their values are found by the lab's names."""

import statistics

import pytest

from trainact.errors import TrActValueError
from trainact.lab.models import networks
from trainact.lab.paper.claims import check_claims, read_claim
from trainact.lab.paper.hyperparameters import read_hyperparameters
from trainact.lab.paper.tables import (
    find_places,
    find_printed,
    list_networks,
    list_printed,
    list_recipes,
    printed_values,
    read_table,
    read_tables,
)
from trainact.lab.paper.values import METRICS, parse_cell
from trainact.lab.recipes.arms import PLAIN, make_arm, parse_arms

ANY_LAM, REPORTED = make_arm("tract", {"tract.enabled": True}), make_arm("reported", {})
TRACT, TRACT_05, TRACT_02 = parse_arms(["tract"], [0.1, 0.05, 0.2])
NETWORKS = [
    "squeezenet",
    "mobilenet",
    "mobilenetv2",
    "shufflenet",
    "shufflenetv2",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "densenet121",
    "densenet161",
    "densenet201",
    "googlenet",
    "inceptionv3",
    "inceptionv4",
    "inceptionresnetv2",
    "xception",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50",
    "resnext101",
    "resnext152",
    "seresnet18",
    "seresnet34",
    "seresnet50",
    "seresnet101",
    "seresnet152",
    "nasnet",
    "wideresnet-40-10",
    "stochasticdepth18",
    "stochasticdepth34",
    "stochasticdepth50",
    "stochasticdepth101",
]
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
    "time-cifar10-vit",
    "time-deit3-vit-b",
    "time-deit3-vit-s",
    "transfer-cars",
    "transfer-cars-adamw",
    "transfer-cifar10",
    "transfer-cifar10-adamw",
    "transfer-cifar100",
    "transfer-cifar100-adamw",
    "transfer-flowers102",
    "transfer-flowers102-adamw",
]
COUNTS = {
    "cifar100": 37 * 4,
    "cifar100-133": 37 * 2,
    "imagenet-resnet50": 12,
    "deit3": 15,
    "transfer": 8,
    "detection": 2,
    "runtime": 6,
}


@pytest.mark.parametrize("key", COUNTS)
def test_every_table_has_all_its_numbers_and_a_place(key):
    table = read_table(key)
    assert len(table.values) == COUNTS[key]
    assert table.title
    assert "Section" in table.place
    for number, value in table.values.items():
        assert number.metric in METRICS
        assert value.mean > 0
        assert number.recipe in list_recipes()


def test_the_tables_are_listed_and_share_no_number():
    assert [table.key for table in read_tables()] == list(COUNTS)
    assert len(printed_values()) == sum(COUNTS.values())


def test_the_36_networks_are_there_in_the_papers_order():
    assert list_networks() == NETWORKS
    assert set(NETWORKS) <= set(networks.NETWORKS)
    for network in NETWORKS:
        for arm, budget in ((PLAIN, 200), (TRACT, 200), (TRACT, 133)):
            for metric in ("top1", "top5"):
                value = find_printed("cifar100-table", network, arm, budget, metric)
                assert value.decimals == 2
                assert value.deviation > 0


@pytest.mark.parametrize("metric", ["top1", "top5"])
@pytest.mark.parametrize(("arm", "budget"), [(PLAIN, 200), (TRACT, 200), (TRACT, 133)])
def test_printed_averages_are_those_of_the_printed_rows(arm, budget, metric):
    rows = [find_printed("cifar100-table", name, arm, budget, metric) for name in NETWORKS]
    printed = find_printed("cifar100-table", "average", arm, budget, metric)
    assert round(statistics.fmean(row.mean for row in rows), 2) == printed.mean
    deviation = statistics.fmean(row.deviation for row in rows)
    assert abs(deviation - printed.deviation) <= 0.005 + 1e-9  # one of the six is a tie


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (("cifar100-table", "squeezenet", PLAIN, 200, "top1"), "69.45 ± 0.30"),
        (("cifar100-table", "mobilenet", TRACT, 200, "top5"), "89.12 ± 0.16"),
        (("cifar100-table", "inceptionresnetv2", PLAIN, 200, "top5"), "93.00 ± 0.18"),
        (("cifar100-table", "resnext101", TRACT, 200, "top1"), "79.54 ± 0.25"),
        (("cifar100-table", "wideresnet-40-10", PLAIN, 200, "top1"), "78.93 ± 0.07"),
        (("cifar100-table", "stochasticdepth101", TRACT, 133, "top5"), "94.55 ± 0.02"),
        (("cifar100-table", "vgg16", TRACT, 133, "top1"), "72.11 ± 0.10"),
        (("cifar100-table", "average", TRACT, 200, "top1"), "76.39 ± 0.24"),
        (("imagenet-resnet50", None, PLAIN, 30, "top5"), "90.70"),
        (("imagenet-resnet50", None, TRACT, 60, "top1"), "75.68"),
        (("deit3-vit-s", None, REPORTED, 400, "top1"), "80.4"),
        (("deit3-vit-s", None, TRACT_02, 800, "top5"), "95.98"),
        (("deit3-vit-b", None, PLAIN, 400, "top1"), "83.34"),
        (("deit3-vit-b-finetune-a", None, ANY_LAM, 50, "top1"), "83.58"),
        (("deit3-vit-s-800-finetune-b", None, ANY_LAM, 50, "top1"), "82.18"),
        (("deit3-vit-s", None, ANY_LAM, 400, "top1"), "81.50"),
        (("transfer-cars-adamw", None, ANY_LAM, 1000, "top1"), "91.07"),
        (("transfer-cars", None, PLAIN, 1000, "top1"), "90.44"),
        (("transfer-flowers102", None, TRACT_02, 5000, "top1"), "95.58"),
        (("detection-voc2007", None, TRACT, 12, "map"), "0.671 ± 0.004"),
        (("cifar10-vit", None, TRACT, 100, "seconds"), "1197"),
        (("deit3-vit-s", None, PLAIN, 800, "minutes"), "8032"),
    ],
)
def test_a_number_is_found_by_the_names_of_the_lab(key, shown):
    assert find_printed(*key).show() == shown


@pytest.mark.parametrize(
    "key",
    [
        ("cifar10-resnet18-sgd", None, PLAIN, 100, "top1"),  # a figure shows it
        ("cifar100-table", "vgg16", PLAIN, 133, "top1"),  # plain was not run so
        ("imagenet-resnet50", None, TRACT_05, 60, "top1"),  # λ is stated, and another
        ("deit3-vit-s", None, REPORTED, 400, "top5"),  # an empty cell
    ],
)
def test_what_is_not_printed_is_none(key):
    assert find_printed(*key) is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: read_table("cifar-100"), "did you mean 'cifar100'"),
        (lambda: find_printed("cifar100-tabel", "vgg16", PLAIN, 200, "top1"), "'cifar100-table'"),
        (lambda: find_printed("cifar100-table", "vgg-16", PLAIN, 200, "top1"), "'vgg16'"),
        (
            lambda: find_printed("cifar100-table", None, PLAIN, 200, "top1"),
            "there are squeezenet",
        ),
        (lambda: find_printed("cifar10-vit", None, PLAIN, 200, "top-1"), "'top1'"),
        (lambda: find_places("cifar10-vits"), "'cifar10-vit'"),
        (lambda: read_hyperparameters("cifar10-vits"), "'cifar10-vit'"),
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
    assert list_recipes() == RECIPES
    for recipe in RECIPES:
        assert find_places(recipe)
    assert find_places("cifar100-table") == [
        "Table 1 (tab:conv-cifar-100), Table 6 (tab:conv-cifar-100-std), Section 4.2 and B",
        "Table 7 (tab:conv-cifar-100-std-133), Section B",
    ]
    assert find_places("imagenet-resnet50")[1] == "Figure 5 (fig:resnet-50-imagenet), Section 4.3"


def test_a_recipe_with_the_numbers_of_another_has_those_of_its_table_only():
    seconds = find_printed("time-cifar10-vit", None, PLAIN, 100, "seconds")
    assert seconds.show() == "1091"
    for key in (
        ("time-cifar10-vit", None, PLAIN, 200, "seconds"),
        ("time-deit3-vit-s", None, PLAIN, 2, "minutes"),  # printed for 800 epochs
        ("time-deit3-vit-s", None, PLAIN, 800, "top1"),  # not of this table
        ("deit3-vit-s-800-finetune-a", None, PLAIN, 800, "minutes"),  # of the pre-training
    ):
        assert find_printed(*key) is None
    assert find_printed("deit3-vit-s-800-finetune-a", None, PLAIN, 50, "top1").show() == "81.97"
    assert find_places("time-deit3-vit-b") == ["text, Section 4.6"]
    assert find_places("deit3-vit-b-finetune-a") == ["Table 3 (tab:vit-imagenet), Section 4.3"]
    minutes = list_printed("time-deit3-vit-b")
    assert [value.mean for value in minutes.values()] == [5908.0, 5923.0]
    assert list_printed("photos") == {}
