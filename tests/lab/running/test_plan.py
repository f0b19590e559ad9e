"""Plans: 540 runs of 36 networks in their folders and shards, and the command of a recipe."""

import collections

import pytest

from trainact.errors import TrActValueError
from trainact.lab.models.networks import NETWORKS
from trainact.lab.recipes.experiment import Experiment, find_experiment, name_network
from trainact.lab.recipes.recipe import Recipe, identify
from trainact.lab.running.plan import PlannedRun, Shard, format_command, parse_shard, place_runs
from trainact.lab.running.smoke import shrink
from trainact.lab.training.optimizers import rate_at

OTHERS = {"speed", "resnet18-tract", "vit-cifar", "resnet18-imagenet", "deit3-small", "deit3-base"}


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
            first = (place - 1) * steps  # epochs are counted from 1
            before, after = (rate_at(schedule, 0.1, first - i, steps) for i in (1, 0))
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


def test_a_plan_of_one_experiment_needs_no_member_in_its_names(tmp_path):
    [run] = place_runs([Recipe()], tmp_path)
    assert run.name == "tract, 5 epochs, seed 0"
    assert run.find_record() is None


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
