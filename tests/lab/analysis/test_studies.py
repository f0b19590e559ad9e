"""Studies: the runs of one experiment, from several folders and of several networks."""

import pytest

from comparison_records import make_record
from result_folders import write_record, write_study, write_tuning
from trainact.errors import TrActValueError
from trainact.lab.analysis.studies import find_studies
from trainact.lab.commands import cli

OWN, VIT, TABLE = "cifar10-cpu-resnet-sgd", "cifar10-vit", "cifar100-table"
ARMS = ("plain", "tract-0.1")


def test_networks_of_one_folder_are_one_study_each(tmp_path):
    for network in ("vgg16", "resnet18"):
        for arm in ARMS:
            record = make_record(arm, 200, 0, 70, model__name=f"lab:{network}")
            write_record(tmp_path / TABLE, record | {"recipe_id": f"{network}-{arm}"})
    lost = tmp_path / TABLE / "runs" / "plain-200ep-seed1-abc"
    lost.mkdir()
    (lost / "recipe.toml").write_text("")
    studies, _ = find_studies([tmp_path])
    assert [study.key for study in studies] == [f"{TABLE}-resnet18", f"{TABLE}-vgg16"]
    assert [study.network for study in studies] == ["resnet18", "vgg16"]
    assert [len(study.records) for study in studies] == [2, 2]
    assert [len(study.interrupted) for study in studies] == [1, 0]


def test_runs_of_one_recipe_in_two_folders_are_one_study(tmp_path):
    for place, seeds in (("here", (0, 1)), ("there", (1, 2))):  # seed 1 is a copy
        write_study(tmp_path / place / VIT, arms=ARMS, budgets=(2,), seeds=seeds)
    for place in ("here", "there"):
        write_study(tmp_path / place / "mine", arms=ARMS, budgets=(2,), seeds=(0,))
    studies, _ = find_studies([tmp_path, tmp_path / "here"])
    assert [(study.key, len(study.records)) for study in studies] == [
        (VIT, 6),
        ("here-mine", 2),
        ("there-mine", 2),
    ]


def test_a_run_and_its_collected_record_are_one_result(tmp_path):
    record = make_record("plain", 2, 0, 50)
    record["recipe"]["data"] = {"folder": "/some/place/images"}
    write_record(tmp_path / "runs" / VIT, record)
    runs, results = tmp_path / "runs", tmp_path / "results"
    assert cli.main(["collect", str(runs), "--into", str(results)]) == 0
    (study,), _ = find_studies([runs, results])
    assert len(study.records) == 1


def test_tuning_runs_belong_to_no_study(tmp_path):
    write_study(tmp_path / VIT, arms=ARMS, budgets=(2,), seeds=(0,))
    write_record(tmp_path / VIT / "tuning", make_record("tune-0.1", 2, 0, 55))
    tuning = write_tuning(tmp_path / VIT)
    (study,) = find_studies([tmp_path])[0]
    assert {record["arm"] for record in study.records} == set(ARMS)
    assert study.tuning == tuning


def test_smoke_runs_are_a_study_of_their_own_and_come_last(tmp_path):
    write_record(tmp_path / "a", make_record("plain", 1, 0, [20.0], kind="smoke"))
    write_record(tmp_path / "b", make_record("plain", 2, 0, 60))
    studies, damages = find_studies([tmp_path])
    assert [(study.key, study.kind) for study in studies] == [("b", "full"), ("a-smoke", "smoke")]
    assert damages == []


def test_damaged_files_are_named_with_the_reason(tmp_path):
    lacking = make_record("plain", 2, 0, 60)
    del lacking["order"]
    record = write_record(tmp_path / OWN, lacking) / "record.json"
    tuning = tmp_path / OWN / "tuning" / "tuning.json"
    write_tuning(tmp_path / OWN)
    tuning.write_text(tuning.read_text().replace('"seeds"', '"sedes"'))
    studies, damages = find_studies([tmp_path])
    assert studies == []
    assert [damage.path for damage in damages] == [record, tuning]
    assert f"{record}: record 1 of the comparison lacks 'order'" in damages[0].reason
    assert f"{tuning} was not written by trainact tune: KeyError('seeds')" in damages[1].reason


def test_empty_and_missing_folders_are_refused(tmp_path):
    with pytest.raises(TrActValueError, match="there is no record of a run below"):
        find_studies([tmp_path])
    with pytest.raises(TrActValueError, match="is not a folder"):
        find_studies([tmp_path / "nowhere"])
