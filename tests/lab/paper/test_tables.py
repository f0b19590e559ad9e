"""The paper's tables are complete, and their rows give the printed averages."""

import statistics

import pytest

from trainact.lab import paper
from trainact.lab.models import networks
from trainact.lab.paper import find_printed, printed_values

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
    table = paper.read_table(key)
    assert len(table.values) == sum(len(row.values) for row in table.rows) == COUNTS[key]
    assert table.title
    assert "Section" in table.place
    for number, value in table.values.items():
        assert number.metric in paper.METRICS
        assert value.mean > 0
        assert number.recipe in paper.list_recipes()


def test_the_tables_are_listed_and_share_no_number():
    assert paper.list_tables() == list(COUNTS)
    assert len(printed_values()) == sum(COUNTS.values())


def test_the_36_networks_are_there_in_the_papers_order():
    assert paper.list_networks() == NETWORKS
    assert set(NETWORKS) <= set(networks.NETWORKS)
    for network in NETWORKS:
        for arm, budget in (("plain", 200), ("tract-0.1", 200), ("tract-0.1", 133)):
            for metric in ("top1", "top5"):
                value = find_printed("cifar100-table", network, arm, budget, metric)
                assert value.decimals == 2
                assert value.deviation > 0


@pytest.mark.parametrize("metric", ["top1", "top5"])
@pytest.mark.parametrize(
    ("arm", "budget"), [("plain", 200), ("tract-0.1", 200), ("tract-0.1", 133)]
)
def test_printed_averages_are_those_of_the_printed_rows(arm, budget, metric):
    rows = [find_printed("cifar100-table", name, arm, budget, metric) for name in NETWORKS]
    printed = find_printed("cifar100-table", "average", arm, budget, metric)
    assert round(statistics.fmean(row.mean for row in rows), 2) == printed.mean
    deviation = statistics.fmean(row.deviation for row in rows)
    assert abs(deviation - printed.deviation) <= 0.005 + 1e-9  # one of the six is a tie
