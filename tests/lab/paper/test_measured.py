"""Records become values with the paper's keys."""

import pytest

from comparison_records import diverge, judge_by_precision, make_record
from trainact.lab.paper.claims import check_claims
from trainact.lab.paper.measured import measure_values
from trainact.lab.paper.values import Key


def test_records_become_values_with_the_papers_keys():
    records = [
        make_record("plain", 2, seed, [60.0, accuracy]) for seed, accuracy in enumerate((70, 72))
    ]
    values = measure_values("cifar10-vit", records)
    top1 = values[Key("cifar10-vit", None, "plain", 2, "top1")]
    assert (top1.mean, top1.runs) == (71.0, 2)
    assert top1.deviation == pytest.approx(2**0.5)
    assert values[Key("cifar10-vit", None, "plain", 2, "top5")].mean == 99.5
    seconds = values[Key("cifar10-vit", None, "plain", 2, "seconds")].mean
    assert values[Key("cifar10-vit", None, "plain", 2, "minutes")].mean == pytest.approx(
        seconds / 60
    )


def test_detection_is_measured_by_its_precision_and_its_claim_checked():
    records = [
        judge_by_precision(make_record(arm, 2, seed, 60), [0.1, value + seed / 100])
        for arm, value in (("plain", 0.65), ("tract-0.1", 0.67))
        for seed in range(2)
    ]
    values = measure_values("detection-voc2007", records)
    assert values[Key("detection-voc2007", None, "plain", 2, "map")].mean == pytest.approx(0.655)
    assert not any(key.metric == "top1" for key in values)
    assert check_claims(values, ["detection-gain"])[0].holds


def test_networks_of_the_table_are_named_by_their_records():
    record = make_record("plain", 2, 0, 70.0, model__name="lab:vgg16")
    keys = {
        Key("cifar100-table", "vgg16", "plain", 2, m)
        for m in ("top1", "top5", "seconds", "minutes")
    }
    assert set(measure_values("cifar100-table", [record])) == keys


def test_smoke_runs_and_arms_with_a_diverged_seed_give_no_values():
    smoke = make_record("plain", 2, 0, 70.0, kind="smoke")
    runs = [make_record("tract-0.1", 2, 0, 70.0), diverge(make_record("tract-0.1", 2, 1, 70.0))]
    assert measure_values("cifar10-vit", [smoke, *runs]) == {}
