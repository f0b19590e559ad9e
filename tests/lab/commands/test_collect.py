"""trainact collect: records are merged into files, and nothing is lost or mixed."""

import dataclasses

import pytest

from comparison_records import make_record
from result_folders import write_record, write_study, write_tuning
from trainact.lab.analysis.studies import find_studies
from trainact.lab.commands import cli
from trainact.lab.records.results import find_runs

OWN, VIT, TABLE = "cifar10-cpu-resnet-sgd", "cifar10-vit", "cifar100-table"
ARMS = ("plain", "tract-0.1")


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    write_study(root / OWN, arms=ARMS, budgets=(2, 4), seeds=(0, 1))
    write_record(root / OWN / "tuning", make_record("tune-0.08", 2, 0, 55))
    write_tuning(root / OWN)
    return root


def collect(*words):
    return cli.main(["collect", *map(str, words)])


def list_files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_an_experiment_becomes_three_files(runs, tmp_path, capsys):
    into = tmp_path / "results" / OWN
    assert collect(runs / OWN, "--into", into) == 0
    assert list_files(into) == ["records.jsonl", "tuning.json", "tuning.jsonl"]
    assert (into / "tuning.json").read_bytes() == (
        runs / OWN / "tuning" / "tuning.json"
    ).read_bytes()
    shown = capsys.readouterr().out
    assert f"{into / 'records.jsonl'}: 8 added, 0 replaced, 0 already there" in shown
    assert f"{into / 'tuning.jsonl'}: 1 added, 0 replaced, 0 already there" in shown


def test_collected_records_are_the_same_studies_as_the_runs(runs, tmp_path):
    for network in ("vgg16", "resnet18"):
        for arm in ARMS:
            record = make_record(arm, 200, 0, 70, model__name=f"lab:{network}")
            write_record(runs / TABLE / network, record)
    results = tmp_path / "results"
    assert collect(runs, "--into", results) == 0
    assert f"{TABLE}/vgg16/records.jsonl" in list_files(results)
    made, _ = find_studies([runs])
    assert [study.key for study in made] == [OWN, f"{TABLE}-resnet18", f"{TABLE}-vgg16"]
    for roots in ([results], [runs, results]):
        found, damages = find_studies(roots)
        assert damages == []
        assert [dataclasses.replace(study, folder=None) for study in found] == [
            dataclasses.replace(study, folder=None) for study in made
        ]


def test_records_already_there_stay_and_copies_are_skipped(runs, tmp_path, capsys):
    into = tmp_path / OWN
    collect(runs / OWN, "--into", into)
    before = {name: (into / name).read_bytes() for name in list_files(into)}
    assert collect(runs / OWN, "--into", into) == 0
    assert "0 added, 0 replaced, 8 already there" in capsys.readouterr().out
    assert {name: (into / name).read_bytes() for name in list_files(into)} == before
    other = tmp_path / "other machine" / OWN
    write_study(other, arms=ARMS, budgets=(2,), seeds=(1, 2))  # seed 1 is a copy
    assert collect(other, "--into", into) == 0
    assert "2 added, 0 replaced, 2 already there" in capsys.readouterr().out
    assert len(find_runs([into])) == 8 + 2 + 1
    lines = (into / "records.jsonl").read_bytes().splitlines()
    assert set(before["records.jsonl"].splitlines()) < set(lines)


def test_the_path_of_the_data_is_not_published(tmp_path):
    record = make_record("plain", 2, 0, 55)
    record["recipe"]["data"] = {"folder": str(tmp_path / "photos")}
    write_record(tmp_path / "runs" / OWN, record)
    assert collect(tmp_path / "runs" / OWN, "--into", tmp_path / OWN) == 0
    assert str(tmp_path) not in (tmp_path / OWN / "records.jsonl").read_text()
    (run,) = find_runs([tmp_path / OWN])
    assert run.damage is None or not run.damage
    assert run.record["recipe"]["data"] == {"folder": "photos"}


def test_another_record_of_the_same_run_needs_replace(runs, tmp_path, capsys):
    into = tmp_path / OWN
    collect(runs / OWN, "--into", into)
    before = (into / "records.jsonl").read_bytes()
    record = make_record("plain", 4, 0, 61)
    write_record(runs / OWN, record)
    write_record(runs / OWN, make_record("plain", 4, 9, 61))
    assert collect(runs / OWN, "--into", into) == 2
    shown = capsys.readouterr().err
    assert "holds other records of 1 run, for example plain, 4 epochs, seed 0 (recipe " in shown
    assert "--replace" in shown
    assert (into / "records.jsonl").read_bytes() == before
    assert collect(runs / OWN, "--into", into, "--replace") == 0
    assert "1 added, 1 replaced, 7 already there" in capsys.readouterr().out
    records = [run.record for run in find_runs([into])]
    assert len(records) == 10
    assert record["epochs"] in [r["epochs"] for r in records]


def test_another_tuning_needs_replace(runs, tmp_path, capsys):
    into = tmp_path / OWN
    collect(runs / OWN, "--into", into)
    write_tuning(runs / OWN, chosen=0.04)
    write_record(runs / OWN, make_record("plain", 4, 9, 61))
    before = (into / "records.jsonl").read_bytes()
    assert collect(runs / OWN, "--into", into) == 2
    assert "tuning.json is not the one below RUNS; add --replace" in capsys.readouterr().err
    assert (into / "records.jsonl").read_bytes() == before
    assert collect(runs / OWN, "--into", into, "--replace") == 0
    assert '"optimizer.lr": 0.04' in (into / "tuning.json").read_text()


def test_two_records_of_one_run_among_the_runs_are_refused(tmp_path, capsys):
    for name, accuracy in (("one", 60), ("two", 61)):
        write_record(tmp_path / name, make_record("plain", 4, 0, accuracy))
    words = tmp_path / "one", tmp_path / "two", "--into", tmp_path / "into", "--replace"
    assert collect(*words) == 2
    assert "two different records of plain, 4 epochs, seed 0" in capsys.readouterr().err
    assert not (tmp_path / "into").exists()
    for name, rate in (("one", 0.04), ("two", 0.08)):
        (tmp_path / name / "runs").rename(tmp_path / f"runs of {name}")
        write_tuning(tmp_path / name, chosen=rate)
    assert collect(*words) == 2
    assert "is a second, different tuning.json for" in capsys.readouterr().err


def test_damaged_and_foreign_files_are_named_and_left_out(runs, tmp_path, capsys):
    damaged = write_record(runs / OWN, make_record("plain", 4, 8, 60)) / "record.json"
    damaged.write_text(damaged.read_text().replace('"budget": 4', '"budget": 5'))
    lacking = make_record("plain", 4, 9, 60)
    del lacking["order"]
    lacking = write_record(runs / OWN, lacking) / "record.json"
    foreign = runs / OWN / "notes" / "record.json"
    foreign.parent.mkdir()
    foreign.write_text('{"title": "a symphony"}')
    (runs / OWN / "tuning" / "tuning.json").write_text('{"tried": [{}]}')
    into = tmp_path / OWN
    assert collect(runs / OWN, "--into", into) == 1
    shown = capsys.readouterr().err
    assert f"left out: {damaged} is not as it was written" in shown
    assert f"left out: {lacking}: record 1 of the comparison lacks 'order'" in shown
    assert f"left out: {foreign} is not a run's record" in shown
    assert "tuning.json was not written by trainact tune" in shown
    assert list_files(into) == ["records.jsonl", "tuning.jsonl"]
    assert len(find_runs([into])) == 9


def test_interrupted_and_smoke_runs_are_counted_and_left_out(runs, tmp_path, capsys):
    lost = runs / OWN / "runs" / "plain-4ep-seed7-0123456789"
    lost.mkdir()
    (lost / "recipe.toml").write_text("")
    write_record(runs / OWN, make_record("plain", 1, 0, [20.0], kind="smoke"))
    assert collect(runs / OWN, "--into", tmp_path / OWN) == 0
    assert "left out: 1 interrupted run, 1 smoke run, 0 damaged files" in capsys.readouterr().out
    assert len(find_runs([tmp_path / OWN])) == 9


def test_smoke_runs_alone_are_refused(tmp_path, capsys):
    write_record(tmp_path / "runs", make_record("plain", 1, 0, [20.0], kind="smoke"))
    assert collect(tmp_path / "runs", "--into", tmp_path / "into") == 2
    assert (
        "0 interrupted runs, 1 smoke run, 0 damaged files; a smoke run is not a result"
        in capsys.readouterr().err
    )
    assert collect(tmp_path / "nowhere", "--into", tmp_path / "into") == 2
    assert not (tmp_path / "into").exists()


def test_a_damaged_file_is_not_written_over(runs, tmp_path, capsys):
    into = tmp_path / OWN
    collect(runs / OWN, "--into", into)
    path = into / "records.jsonl"
    damaged = path.read_text().replace('"budget":4', '"budget":5', 1)
    path.write_text(damaged)
    write_record(runs / OWN, make_record("plain", 4, 9, 61))
    assert collect(runs / OWN, "--into", into, "--replace") == 2
    shown = capsys.readouterr().err
    assert "seal does not fit" in shown
    assert "repair or remove" in shown
    assert path.read_text() == damaged


def test_the_target_may_lie_below_the_runs(runs, capsys):
    for count in (1, 2):
        assert collect(runs, "--into", runs / "results") == 0, count
    assert list_files(runs / "results") == [
        f"{OWN}/{name}" for name in ("records.jsonl", "tuning.json", "tuning.jsonl")
    ]
