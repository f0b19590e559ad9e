"""Steps at full size: their shapes, their peak memory, and what does not fit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lab_helpers
from lab_helpers import make_quick
from trainact.errors import TrActValueError
from trainact.lab.commands.cli import main
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import change_recipe
from trainact.lab.running import full_size
from trainact.lab.running.full_size import choose_runs, measure_step
from trainact.lab.running.plan import place_runs
from trainact.lab.training.detection.session import DetectionSession
from trainact.lab.training.session import Session
from voc_cases import SMALL

SMALL_VIT = {"model.arguments.width": 24, "model.arguments.depth": 1, "model.arguments.heads": 2}


@pytest.fixture
def steps(monkeypatch):
    """Record the shares, sessions and precision of all steps."""
    seen = []
    original = Session.take_step

    def take_step(self, share, count, step):
        seen.append((self, share, count))
        return original(self, share, count, step)

    monkeypatch.setattr(Session, "take_step", take_step)
    return seen


def test_images_and_batch_have_the_recipes_size(steps):
    """A DeiT recipe, with its augmentation, and fewer images."""
    changes = {"data.batch_size": 6, "run.accumulation": 3, "data.workers": 0, "run.device": "cpu"}
    recipe = change_recipe(find_experiment("deit3-vit-s").plan()[1], SMALL_VIT | changes)
    memory = measure_step(recipe)
    assert len(steps) == 2
    session, share, count = steps[0]
    assert share.images.shape == (6, 3, 224, 224)
    assert share.labels.shape == (6, 1000)  # mixed
    assert count == 6
    assert session.recipe.run.precision == "no"  # fp16 needs a GPU
    assert session.average is not None or not recipe.run.ema
    assert not memory.failure
    assert memory.describe().startswith("6 images of 224 x 224 in 3 parts, float32: at most ")
    assert memory.describe().endswith(f" of {memory.total / 1024**3:.1f} GiB on CPU")
    assert 0 < memory.peak < memory.total


@pytest.mark.parametrize(("skipped", "steps"), [(3, 5), (50, full_size.MOST_STEPS)])
def test_steps_that_overflow_do_not_count(monkeypatch, skipped, steps):
    """With fp16 the optimizer has no state before a step is not skipped."""
    taken = []
    original = Session.take_step

    def take_step(self, share, count, step):
        taken.append(step)
        measured = original(self, share, count, step)
        measured[-1] = 0.0 if step < skipped else 1.0
        return measured

    monkeypatch.setattr(Session, "take_step", take_step)
    measure_step(make_quick())
    assert taken == list(range(steps))


@pytest.mark.slow
def test_a_larger_batch_needs_more_memory():
    """In a process of its own: this one may hold memory that earlier tests have freed."""
    code = (
        "from lab_helpers import make_quick\n"
        "from trainact.lab.running.full_size import measure_step\n"
        "for size in (8, 2048):\n"
        "    print(measure_step(make_quick(data__batch_size=size, data__image_size=64)).peak)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(lab_helpers.__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    small, large = map(int, done.stdout.split())
    assert large - small > 2048 * 3 * 64 * 64 * 4  # its float32 images alone


def test_images_in_memory_count_with_the_whole_data_set(monkeypatch):
    monkeypatch.setattr(full_size, "_read_peak", lambda device: 1000)
    recipe = change_recipe(make_quick(), {"data.name": "cifar10", "data.train_images": 0})
    assert measure_step(recipe).peak == 1000 + (50_000 - 32) * 3 * 32 * 32
    stream = change_recipe(recipe, {"data.crop": "resized", "data.image_size": 32})
    assert measure_step(stream).peak == 1000


@pytest.mark.slow
def test_the_detectors_scene_has_the_largest_size(steps):
    changes = {
        "data.folder": "",
        "data.image_size": 48,
        "model.arguments": SMALL["model.arguments"],
    }
    recipe = change_recipe(find_experiment("detection-voc2007").plan()[0],
                           SMALL | changes | {"data.batch_size": 2})  # fmt: skip
    memory = measure_step(recipe)
    session, share, _ = steps[0]
    assert isinstance(session, DetectionSession)
    assert [tuple(image.shape) for image in share.images] == [(3, 48, 80)] * 2
    assert memory.describe().startswith("2 images of 48 x 80, float32: at most ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate "
                     "memory: you tried to allocate 8 bytes."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_with_a_remedy(monkeypatch, error):
    def fail(*rest):
        raise error

    monkeypatch.setattr(Session, "take_step", fail)
    memory = measure_step(make_quick(run__accumulation=2))
    assert memory.failure == str(error).splitlines()[0]
    assert "DOES NOT FIT into" in memory.describe()
    assert "use run.accumulation=4, or several GPUs" in memory.describe()
    alone = measure_step(make_quick(data__batch_size=1))  # a batch that cannot be split
    assert alone.describe().endswith("; use a device with more memory")


def test_another_error_is_raised(monkeypatch):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        measure_step(make_quick(model__name="small_models:make_broken"))


def test_images_without_a_size_are_refused(samples):
    name = str(samples / "imagenette")
    recipe = make_quick(data__name=name, data__train_images=0, data__test_images=0,
                        data__storage="stream")  # fmt: skip
    with pytest.raises(TrActValueError, match=r"have no known size; set data\.image_size"):
        measure_step(recipe)
    sized = change_recipe(recipe, {"data.image_size": 32})
    assert measure_step(sized).size == "32 x 32"


def test_each_arm_of_each_network_is_measured_once(tmp_path):
    members = find_experiment("cifar100-table").split()[:2]
    runs = [run for one in members for run in place_runs(one.plan(), tmp_path / one.name, one.name)]
    chosen = choose_runs(runs)
    assert [(run.member, run.recipe.arm) for run in chosen] == [
        (member.name, arm) for member in members for arm in ("plain", "tract-0.1")
    ]


FILE = """
[experiment]
title = "two arms"
budgets = [1, 2]
[data]
batch_size = 16
[model]
name = "small_models:make_tiny"
[run]
device = "cpu"
"""


@pytest.mark.slow
def test_the_command_prints_a_line_for_each_arm(tmp_path, capsys, monkeypatch):
    (tmp_path / "two.toml").write_text(FILE)
    words = ["run", str(tmp_path / "two.toml"), "--out", str(tmp_path / "out"), "--full-size"]
    assert main([*words, "--smoke"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["plain", "tract-0.1"]
    assert all("16 images of 32 x 32, float32: at most" in line for line in lines)
    assert not (tmp_path / "out").exists()
    assert main([*words, "--smoke", "--shard", "1/20"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    for wrong in (["--jobs", "2"], ["--on", "ray"], ["--dry-run"]):
        assert main([*words, "--smoke", *wrong]) == 2
        assert "--full-size applies to --smoke" in capsys.readouterr().err
    assert main(words) == 2
    assert "--full-size applies to --smoke" in capsys.readouterr().err

    def fail(*rest):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Session, "take_step", fail)
    assert main([*words, "--smoke"]) == 1
    assert capsys.readouterr().out.count("DOES NOT FIT") == 2
