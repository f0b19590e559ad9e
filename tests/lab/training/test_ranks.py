"""Two processes of torchrun against one."""

import math
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lab_helpers import HERE, make_quick, run_several

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("needs torch.distributed with gloo", allow_module_level=True)

import safetensors.torch

from result_folders import find_records
from trainact.lab.recipes.recipe import write_recipe
from trainact.lab.records.record import RunFolder, read_record
from trainact.lab.training.train import train

pytestmark = pytest.mark.slow
UNEVEN = {"data__train_images": 328, "run__accumulation": 2}
SAME = {
    "plain": {"tract__enabled": False, "run__device": "auto"},
    "tract": {"tract__sync": True},
    "eigen": {"tract__sync": True, "model__start": "eigen", "run__ema": 0.9},
    "uneven": {"tract__sync": True, **UNEVEN},
}
SAME["stream"] = {
    "tract__sync": True, "data__storage": "stream", "data__image_size": 24,
    "data__crop": "resized", "data__policy": "three-augment", "data__colour_jitter": 0.3,
    "data__mixup": 0.8, "data__cutmix": 1.0, "data__repeats": 3, "optimizer__loss": "binary",
    "data__train_images": 200, "schedule__epochs": 2,
}  # fmt: skip
SAME |= {
    name: {"tract__enabled": False, f"optimizer__first_layer_{kind}": name, **UNEVEN}
    for name, kind in (("norm-preserving", "rule"), ("mac", "rule"), ("foof", "name"),
                       ("asgo", "name"))
}  # fmt: skip
NOISY = {"model__name": "small_models:make_noisy", "data__train_images": 328}
SKIPPING = {"model__name": "small_models:Skipping"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One launch of two ranks does every run of this file."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, changes in {**SAME, "noisy": NOISY, "skipping": SKIPPING}.items():
        write_recipe(make_quick(**changes, run__arm=name), folder / f"{name}.toml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(HERE / "rank_worker.py"), str(folder)]
    run_several(command)
    return folder


def read(folder: Path, recipe) -> dict:
    return read_record(RunFolder(folder / "several", recipe).record_path)


@pytest.mark.parametrize("name", list(SAME))
def test_two_ranks_agree_with_one(folder, tmp_path, name):
    recipe = make_quick(**SAME[name], run__arm=name)
    one, two = train(recipe, tmp_path, lambda event: None), read(folder, recipe)
    assert (one["environment"]["ranks"], two["environment"]["ranks"]) == (1, 2)
    assert one["order"] == two["order"]
    for record in (one, two):
        same = record["model"]["trained_from"] == record["model"]["initial_weights"]
        assert same == (name != "eigen")
    for a, b in zip(one["epochs"], two["epochs"], strict=True):
        assert a["train_seen"] == b["train_seen"]
        assert a["test_seen"] == b["test_seen"]
        for key in ("train_loss", "test_loss", "first_layer_grad_norm", "grad_norm"):
            assert math.isclose(a[key], b[key], rel_tol=1e-3), key
    weights = [
        safetensors.torch.load_file(RunFolder(root, recipe).weights_path)
        for root in (tmp_path, folder / "several")
    ]
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=1e-2, atol=1e-4)


def test_with_batch_norm_and_dropout_the_global_batch_and_the_steps_agree(folder, tmp_path):
    recipe = make_quick(**NOISY, run__arm="noisy")
    one, two = train(recipe, tmp_path, lambda event: None), read(folder, recipe)
    assert one["order"] == two["order"]
    assert [e["train_seen"] for e in one["epochs"]] == [e["train_seen"] for e in two["epochs"]]
    assert [e["test_seen"] for e in two["epochs"]] == [80] * 3
    assert two["status"] == "complete"


def test_a_branch_that_one_rank_skips_is_trained_by_the_other(folder, tmp_path):
    recipe = make_quick(**SKIPPING, run__arm="skipping")
    record = read(folder, recipe)
    assert record["status"] == "complete"
    assert [e["train_seen"] for e in record["epochs"]] == [320] * 3
    weights = safetensors.torch.load_file(RunFolder(folder / "several", recipe).weights_path)
    first = train(make_quick(**SKIPPING, optimizer__lr=1e-12), tmp_path, lambda event: None)
    assert first["model"]["initial_weights"] == record["model"]["initial_weights"]
    start = safetensors.torch.load_file(
        RunFolder(tmp_path, make_quick(**SKIPPING, optimizer__lr=1e-12)).weights_path
    )
    assert not torch.allclose(weights["branch.weight"], start["branch.weight"], atol=1e-4)


def test_accelerate_launches_ranks_and_its_settings_do_not_change_a_recipe(tmp_path):
    recipe = make_quick(tract__sync=True)
    write_recipe(recipe, tmp_path / "recipe.toml")
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    launch += ["--num_machines=1", "--mixed_precision=bf16", "--dynamo_backend=no"]
    launch += [f"--main_process_port={find_free_port()}"]
    run = ["-m", "trainact.lab", "run", str(tmp_path / "recipe.toml"), "--out", str(tmp_path)]
    run_several([sys.executable, *launch, *run])
    [two] = find_records(tmp_path)
    one = train(recipe, tmp_path / "one", lambda event: None)
    assert (one["environment"]["ranks"], two["environment"]["ranks"]) == (1, 2)
    assert one["order"] == two["order"]
    for a, b in zip(one["epochs"], two["epochs"], strict=True):
        assert math.isclose(a["train_loss"], b["train_loss"], rel_tol=1e-4)


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])
