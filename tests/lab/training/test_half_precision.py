"""fp16: scaled losses, skipped steps and resuming, with a scaler that works on the CPU."""

import math
import os
import signal
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from torch import nn

from lab_helpers import make_quick, without_times
from slow_cases import mark_slow
from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import change_recipe
from trainact.lab.training import train as train_module
from trainact.lab.training.interruption import RunInterrupted
from trainact.lab.training.machine import start_machine
from trainact.lab.training.optimizers import Stepper
from trainact.lab.training.session import Session
from trainact.lab.training.train import train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def scaled(monkeypatch):
    """Set runs up as Accelerate does on a GPU with fp16; return their gradient scalers."""
    scalers = []

    def start(fields, folder):
        accelerator = start_machine(fields, folder)
        accelerator.state._mixed_precision = "fp16"
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu")
        scalers.append(accelerator.scaler)
        return accelerator

    monkeypatch.setattr(train_module, "start_machine", start)
    return scalers


def ignore(event):
    del event


def list_losses(record):
    return [epoch["train_loss"] for epoch in record["epochs"]]


def overflow_in(monkeypatch, steps):
    """Make the loss infinite in the given steps."""
    measure, done = Session.measure, [0]

    def measure_too_much(session, part):
        loss, correct = measure(session, part)
        done[0] += 1
        return (loss * math.inf if done[0] in steps else loss), correct

    monkeypatch.setattr(Session, "measure", measure_too_much)


@pytest.mark.parametrize(
    "changes",
    mark_slow(
        [
            {},
            {"optimizer__first_layer_name": "sgd"},
            {"optimizer__first_layer_name": "foof", "tract__enabled": False},
            {"optimizer__first_layer_rule": "mac", "tract__enabled": False},
        ]
    ),
    ids=["same", "sgd", "foof", "mac"],
)
def test_scaled_losses_train_as_others_do(tmp_path, scaled, changes):
    recipe = make_quick(
        optimizer__name="adam",
        optimizer__lr=2e-3,
        optimizer__eps=1e-3,  # with a small one Adam does not see another scale
        **changes,
    )
    half = train(recipe, tmp_path / "half", ignore)
    assert len(scaled) == 1
    [scaler] = scaled
    assert scaler.get_scale() >= 1024
    scaled.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "start_machine", start_machine)
        whole = train(recipe, tmp_path / "whole", ignore)
    assert list_losses(half) == pytest.approx(list_losses(whole), abs=2e-3)
    assert list_losses(whole)[0] - list_losses(whole)[-1] > 0.02  # or there is nothing to compare


@pytest.mark.parametrize(
    "changes",
    mark_slow(
        [
            {},
            {"optimizer__first_layer_rule": "norm-preserving", "tract__enabled": False},
            {"optimizer__first_layer_name": "asgo", "tract__enabled": False},
        ]
    ),
    ids=["tract", "norm-preserving", "asgo"],
)
def test_a_step_that_overflows_is_left_out(tmp_path, scaled, monkeypatch, changes):
    overflow_in(monkeypatch, {4, 25})
    record = train(make_quick(**changes), tmp_path, ignore)
    assert record["status"] == "complete"
    assert [epoch["train_seen"] for epoch in record["epochs"]] == [288, 320, 288]
    assert all(math.isfinite(loss) for loss in list_losses(record))
    assert scaled[0].get_scale() == 65536 / 4


def test_overflows_that_do_not_end_are_a_divergence(tmp_path, scaled, monkeypatch):
    overflow_in(monkeypatch, range(11, 1000))
    record = train(make_quick(), tmp_path, ignore)
    assert record["status"] == "diverged"
    assert len(record["epochs"]) == 1
    assert "no loss was finite in epoch 2" in record["failure"]
    assert "run.precision=bf16" in record["failure"]


@pytest.mark.slow
def test_the_scale_is_kept_over_an_interruption(tmp_path, scaled, monkeypatch):
    monkeypatch.setattr(train_module, "REPORT_EVERY", 1)
    recipe = make_quick()
    with pytest.MonkeyPatch.context() as patch:
        overflow_in(patch, {4})
        whole = train(recipe, tmp_path / "whole", ignore)

    def stop(event):
        if event.kind == "epoch" and event.epoch == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        overflow_in(patch, {4})
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "parts", stop)
    assert without_times(train(recipe, tmp_path / "parts", ignore)) == without_times(whole)
    assert [scaler.get_scale() for scaler in scaled] == [32768] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("usual_signals")
def test_an_interruption_after_an_overflow_is_no_divergence(tmp_path, scaled, monkeypatch):
    overflow_in(monkeypatch, {1})
    take_step, recipe = Session.take_step, make_quick()

    def take_step_and_press(session, *batch):
        measured = take_step(session, *batch)
        os.kill(os.getpid(), signal.SIGINT)
        return measured

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "take_step", take_step_and_press)
        with pytest.raises(RunInterrupted):
            train(recipe, tmp_path, ignore)
    assert train(recipe, tmp_path, ignore)["status"] == "complete"


def test_running_statistics_do_not_see_a_step_that_overflows(tmp_path, scaled, monkeypatch):
    recipe = make_quick(model__name="small_models:make_noisy", run__ema=0.9)
    forward, calls = nn.Conv2d.forward, [0]

    def flood(layer, images):
        calls[0] += layer.training
        return forward(layer, images) * (math.inf if layer.training and calls[0] == 4 else 1)

    monkeypatch.setattr(nn.Conv2d, "forward", flood)
    record = train(change_recipe(recipe, {"tract.enabled": False}), tmp_path, ignore)
    assert [epoch["train_seen"] for epoch in record["epochs"]] == [288, 320, 320]
    assert all(math.isfinite(epoch["test_loss"]) for epoch in record["epochs"])
    for file in tmp_path.rglob("*.safetensors"):
        weights = safetensors.torch.load_file(file)
        assert all(value.isfinite().all() for value in weights.values()), file.name
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2


def test_no_optimizer_steps_where_the_gradient_of_another_overflows():
    layers = [nn.Linear(2, 1), nn.Linear(2, 1)]
    accelerator = SimpleNamespace(scaler=torch.amp.GradScaler("cpu"))
    optimizers = [SimpleNamespace(optimizer=torch.optim.SGD(x.parameters(), 1.0)) for x in layers]
    for optimizer in optimizers:
        optimizer.zero_grad = optimizer.optimizer.zero_grad
    stepper = Stepper(accelerator, nn.Sequential(*layers), optimizers)
    before = [layer.weight.detach().clone() for layer in layers]
    for worst, stepped in ((math.nan, False), (math.inf, False), (1.0, True)):
        stepper.begin()
        loss = sum(layer(torch.ones(1, 2)).sum() for layer in layers)
        accelerator.scaler.scale(loss).backward()
        layers[0].weight.grad *= worst
        for optimizer in optimizers:
            accelerator.scaler.unscale_(optimizer.optimizer)
        norm = nn.utils.get_total_norm([layer.weight.grad for layer in layers])
        assert stepper.finish(norm) is stepped
        assert all(layer.weight.grad is None for layer in layers)
        changed = [not torch.equal(x.weight, w) for x, w in zip(layers, before, strict=True)]
        assert changed == [stepped] * 2
    assert accelerator.scaler.get_scale() == 65536 / 4


def test_fp16_on_a_cpu_is_refused(tmp_path):
    recipe = change_recipe(make_quick(), {"run.precision": "fp16"})
    with pytest.raises(TrActValueError, match=r"'fp16', which needs a GPU.*bf16 or no"):
        train(recipe, tmp_path, ignore)
