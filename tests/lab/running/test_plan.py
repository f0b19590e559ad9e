"""The CIFAR-100 table: 540 runs of 36 networks, their folders, parts, failures and comparisons."""

import collections
import json

import pytest

from comparison_records import make_record
from lab_helpers import make_quick, start
from result_folders import find_records
from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import answer
from trainact.lab.commands import cli
from trainact.lab.models.networks import NETWORKS
from trainact.lab.recipes.experiment import Experiment, find_experiment, name_network
from trainact.lab.recipes.recipe import Recipe, identify
from trainact.lab.records.failures import clear_failure, read_failure, write_failure
from trainact.lab.running import runner
from trainact.lab.running.plan import PlannedRun, Shard, format_command, parse_shard, place_runs
from trainact.lab.running.smoke import shrink
from trainact.lab.training.optimizers import rate_at

OTHERS = {"resnet18-tract", "vit-cifar", "resnet18-imagenet", "deit3-small", "deit3-base"}
TWO = """
[experiment]
title = "two networks"
seeds = "0"
networks = ["small_models:make_tiny", "small_models:make_noisy"]
[data]
name = "photos"
train_images = 64
test_images = 16
batch_size = 32
[schedule]
epochs = 1
[run]
device = "cpu"
"""


@pytest.fixture(scope="module")
def table() -> Experiment:
    return find_experiment("cifar100-table")


@pytest.fixture(scope="module")
def planned(table, tmp_path_factory) -> list[PlannedRun]:
    root = tmp_path_factory.mktemp("table")
    return [
        run
        for member in table.split()
        for run in place_runs(member.plan(), root / member.name, member.name)
    ]


@pytest.fixture
def two(tmp_path) -> str:
    (tmp_path / "two.toml").write_text(TWO)
    return str(tmp_path / "two.toml")


def test_the_table_is_540_runs_of_36_networks(table):
    runs = table.plan()
    assert len({identify(run) for run in runs}) == len(runs) == 540
    cells = collections.Counter((r.model.name, r.run.arm, r.schedule.epochs) for r in runs)
    assert set(cells.values()) == {5}
    assert {cell[0] for cell in cells} == {f"lab:{name}" for name in set(NETWORKS) - OTHERS}
    assert {cell[1:] for cell in cells} == {("plain", 200), ("tract-0.1", 200), ("tract-0.1", 133)}


def test_a_run_of_the_table_is_what_the_paper_states(table):
    for run in table.plan():
        data, optimizer, schedule = run.data, run.optimizer, run.schedule
        assert (data.name, data.batch_size, data.drop_last) == ("cifar100", 128, False)
        assert (data.crop, data.crop_padding, data.flip, data.rotation) == ("pad", 4, True, 15)
        assert data.mean == (0.5071, 0.4865, 0.4409)
        assert data.std == (0.2673, 0.2564, 0.2762)
        assert (optimizer.name, optimizer.momentum, optimizer.nesterov) == ("sgd", 0.9, False)
        assert (optimizer.lr, optimizer.weight_decay, run.tract.lam) == (0.1, 5e-4, 0.1)
        places = {200: (60, 120, 160), 133: (40, 80, 107)}[schedule.epochs]
        assert schedule.milestones == places
        steps = 391
        assert rate_at(schedule, 0.1, 0, steps) == 0
        assert rate_at(schedule, 0.1, 100, steps) == pytest.approx(0.1 * 100 / steps)
        for times, place in enumerate(places, 1):
            before, after = (rate_at(schedule, 0.1, place * steps - i, steps) for i in (1, 0))
            assert (before, after) == pytest.approx((0.1 * 0.2 ** (times - 1), 0.1 * 0.2**times))


def test_each_network_is_a_member_with_a_folder_and_names_of_its_own(table, planned):
    members = table.split()
    assert len(members) == 36
    assert members[0].name == "cifar100-table/squeezenet"
    assert all(member.split() == [member] and len(member.plan()) == 15 for member in members)
    assert len({run.folder.path for run in planned}) == len({run.name for run in planned}) == 540
    vgg16 = next(run for run in planned if run.recipe.model.name == "lab:vgg16")
    assert vgg16.name == "cifar100-table/vgg16: plain, 200 epochs, seed 0"
    assert vgg16.folder.path.parts[-4:-1] == ("cifar100-table", "vgg16", "runs")


def test_a_recipe_without_networks_is_its_only_member():
    photos = find_experiment("photos")
    assert photos.split() == [photos]
    assert name_network("timm:vit/tiny") == "timm-vit-tiny"


def test_a_smoke_run_is_two_steps_of_each_network_and_arm(table):
    runs = shrink(table).plan()
    assert len(runs) == 72
    assert {run.run.arm for run in runs} == {"plain", "tract-0.1"}
    for run in runs:
        assert run.run.smoke
        assert run.data.train_images == 2 * run.data.batch_size <= 16
        assert run.data.name == "photos"  # without a folder of CIFAR-100


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 7, 15, 36, 540, 541])
def test_shards_are_disjoint_complete_and_balanced(planned, parts):
    shards = [Shard(number, parts).choose(planned) for number in range(1, parts + 1)]
    names = [run.name for shard in shards for run in shard]
    assert sorted(names) == sorted(run.name for run in planned)
    assert len(set(names)) == 540
    epochs = [sum(run.recipe.schedule.epochs for run in shard) for shard in shards]
    assert max(epochs) - min(epochs) <= 200
    if parts <= 5:
        for shard in shards:
            count = collections.Counter(run.recipe.model.name for run in shard)
            assert set(count.values()) <= {15 // parts + d for d in (-1, 0, 1, 2)}
    assert shards == [Shard(number, parts).choose(planned) for number in range(1, parts + 1)]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(TrActValueError, match=r"--shard takes i/n with i from 1 to n"):
        parse_shard(text)


def test_the_command_lists_networks_parts_and_what_is_wrong(capsys, tmp_path):
    base = ["run", "cifar100-table", "--dry-run", "--out", str(tmp_path)]
    assert cli.main([*base, "--shard", "2/4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 135
    assert cli.main([*base, "--networks", "vgg11,resnet18", "--epochs", "133"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    seven = ["--epochs", "7", "--seeds", "0", "schedule.milestones=[3]"]
    assert cli.main([*base, *seven, "--networks", "vgg11"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # another budget has all arms
    for wrong, message in (
        (["--networks", "vgg12"], "unknown network of cifar100-table 'vgg12'; did you mean"),
        (["--arms", "plain", "--epochs", "133"], "has no run with these arms and budgets"),
        (["--shard", "3/2"], "--shard takes i/n"),
    ):
        assert cli.main([*base, *wrong]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["run", "photos", "--networks", "vgg11"]) == 2
    assert "photos has one network" in capsys.readouterr().err


def test_runs_of_two_networks_are_done_apart_and_never_compared(two, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["run", two, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "4 runs complete, 0 diverged, 0 failed" in said.out
    assert f"Report: trainact report {out}\n" in said.out
    assert "small_models-make_noisy: plain, 1 epoch, seed 0: epoch 1/1" in said.err
    folders = sorted(path.name for path in out.iterdir())
    assert folders == ["small_models-make_noisy", "small_models-make_tiny"]
    for folder in folders:
        records = find_records(out / folder)
        assert {r["model"]["name"] for r in records} == {folder.replace("-", ":", 1)}
        assert len(answer(records).runs) == 2
    with pytest.raises(TrActValueError, match=r"records of 2 networks \(small_models:make_noisy,"):
        answer(find_records(out))


def test_records_of_two_networks_are_refused_even_where_nothing_else_tells_them_apart():
    records = [
        make_record("plain", 2, 0, 50.0),
        make_record("tract-0.1", 2, 0, 60.0, model__name="lab:vgg11"),
    ]
    with pytest.raises(TrActValueError, match="records of 2 networks"):
        answer(records)


def test_a_failure_is_recorded_listed_tried_again_and_then_forgotten(tmp_path, capsys):
    """Here and in a process of its own; the run beside it is done all the same."""
    file, out = tmp_path / "two.toml", tmp_path / "out"
    file.write_text(TWO.replace("make_noisy", "make_broken").replace("[model]", ""))
    command = ["run", str(file), "--out", str(out), "--arms", "plain"]
    assert cli.main(command) == 1
    said = capsys.readouterr()
    assert "1 run complete, 0 diverged, 1 failed" in said.out
    assert "failed: small_models-make_broken: plain, 1 epoch, seed 0: RuntimeError" in said.err
    [path] = out.rglob("failure.json")
    failure = json.loads(path.read_text())
    assert failure["attempts"] == 1
    assert any("shapes cannot be multiplied" in line for line in failure["trace"])
    assert cli.main([*command, "--dry-run"]) == 0
    states = [line[:6].strip() for line in capsys.readouterr().out.splitlines()]
    assert states == ["done", "failed"]
    process = start("trainact.lab", *command, "--jobs", "2")
    process.communicate(timeout=600)
    assert process.returncode == 1
    assert json.loads(path.read_text())["attempts"] == 2
    clear_failure(path.parent)
    assert read_failure(path.parent) is None


def test_among_ranks_a_failure_is_written_once_and_raised_by_all(tmp_path, monkeypatch):
    def fail(*rest):
        raise TrActValueError("an image is cut short")

    monkeypatch.setattr(runner, "train", fail)
    run = PlannedRun(make_quick(), tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(TrActValueError, match="cut short"):
            runner.do_run(run, lambda event: None, lambda fields: None)
        assert (read_failure(run.folder.path) is not None) == (rank == "0")


def test_a_run_that_ends_well_forgets_its_failure(two, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["run", two, "--out", str(out), "--arms", "plain"]
    experiment = find_experiment(two)
    [run, _] = [
        PlannedRun(recipe, out / name_network(recipe.model.name))
        for recipe in experiment.plan()
        if recipe.run.arm == "plain"
    ]
    write_failure(run.folder.path, "the power went")
    assert cli.main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("failed small_models-make_tiny")
    assert cli.main(command) == 0
    assert read_failure(run.folder.path) is None


def test_a_plan_of_one_experiment_needs_no_member_in_its_names(tmp_path):
    [run] = place_runs([Recipe()], tmp_path)
    assert run.name == "tract, 5 epochs, seed 0"
    assert run.find_record() is None


def test_two_small_networks_of_the_table_take_their_smoke_steps(tmp_path, capsys):
    command = ["run", "cifar100-table", "--smoke", "--networks", "squeezenet,shufflenetv2"]
    assert cli.main([*command, "--out", str(tmp_path), "run.device=cpu"]) == 0
    assert "4 runs complete" in capsys.readouterr().out
    records = find_records(tmp_path / "cifar100-table" / "squeezenet")
    assert {r["kind"] for r in records} == {"smoke"}
    assert all(r["epochs"][0]["train_seen"] == 8 for r in records)
    assert not list(tmp_path.rglob("weights.safetensors"))


@pytest.mark.parametrize(
    ("name", "verb", "command"),
    [
        ("cifar10-vit", "run", "run cifar10-vit"),
        ("imagenette-cpu-vit", "tune", "tune imagenette-cpu-vit --data path/to/imagenette"),
        ("deit3-vit-b", "run", "run deit3-vit-b --data path/to/imagenet"),
        (
            "transfer-cifar10",
            "run",
            "run transfer-cifar10 \\\n    --model.weights "
            "'runs/deit3-vit-s/runs/{pretraining}-800ep-seed{seed}-*/weights.safetensors'",
        ),
    ],
)
def test_a_command_names_what_its_user_has_to_give(name, verb, command):
    assert format_command(find_experiment(name), verb) == command
