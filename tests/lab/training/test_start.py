"""The start of the first layer: whitened, frozen, resumed."""

import pytest
import safetensors.torch
import torch
from torch import nn

from lab_helpers import InterruptedRunError, ignore, make_quick, stop_after, without_times
from slow_cases import mark_slow
from trainact import TrActValueError, UnsupportedLayerError, apply_tract, whiten
from trainact.lab.data import load_data
from trainact.lab.models.build import hash_weights
from trainact.lab.records.record import RunFolder
from trainact.lab.training import start
from trainact.lab.training.machine import start_machine
from trainact.lab.training.session import Session
from trainact.lab.training.start import freeze_layers
from trainact.lab.training.stream import StreamDataset
from trainact.lab.training.train import train


def open_session(tmp_path, **changes):
    recipe = make_quick(**changes)
    return Session(recipe, load_data(recipe.data), start_machine(recipe.run, tmp_path))


STREAM = {"data__storage": "stream", "data__image_size": 24, "data__crop": "resized",
          "data__train_images": 200}  # fmt: skip


def prepare_images(session, count):
    """Return the first training images as the network sees test images, with other code."""
    train, standard = session.data.train, session.standard
    if session.recipe.data.storage == "stream":
        dataset = StreamDataset(train, session.recipe.data, 24, train=False, seed=0)
        pixels = torch.stack([dataset[0, i, i][0] for i in range(count)])
    else:
        pixels = train.images[:count]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in standard)
    return (pixels.float() / 255 - mean) / std


@pytest.mark.parametrize("data", mark_slow([STREAM, {}]), ids=["stream", "memory"])
@pytest.mark.parametrize("filters", mark_slow(["eigen", "random"]))
def test_a_start_is_that_of_the_first_training_images(tmp_path, filters, data):
    """In order, without augmentation; the weights that pair runs are those before it."""
    count, scale = 90, "unit" if filters == "random" else "keep"
    fields = {"model__start_images": count, "model__start_scale": scale, "run__seed": 3, **data}
    plain = open_session(tmp_path, **fields, tract__enabled=False)
    arms = [
        open_session(tmp_path, **fields, model__start=filters, tract__enabled=enabled, run__ema=0.9)
        for enabled in (False, True)
    ]
    before = {key: value.clone() for key, value in plain.network.state_dict().items()}
    images = prepare_images(plain, count)
    whiten(plain.network, images, filters=filters, scale=scale, seed=3, layers=["0"])
    for arm in arms:
        assert arm.initial_weights == plain.initial_weights == plain.trained_from
        assert arm.trained_from == hash_weights(arm.network) != arm.initial_weights
        assert arm.average is not None
        for key, value in arm.network.state_dict().items():
            expected = plain.network.state_dict()[key]
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
            assert torch.equal(value, before[key]) == (key != "0.weight")
            assert torch.equal(arm.average.module.state_dict()[key], value)
    assert arms[0].trained_from == arms[1].trained_from
    other = open_session(tmp_path, **fields | {"model__start_images": 60}, model__start=filters)
    assert other.trained_from != arms[0].trained_from


@pytest.mark.parametrize("values", mark_slow(["raw", "standard", "unit"]))
@pytest.mark.parametrize("enabled", [False, True])
def test_a_scaled_start_has_outputs_of_unit_variance(tmp_path, values, enabled):
    """One factor; the bias and the weights that pair runs stay."""
    fields = {"data__values": values, "model__start_images": 90, "tract__enabled": enabled}
    plain = open_session(tmp_path, **fields)
    session = open_session(tmp_path, **fields, model__start="scaled")
    assert session.initial_weights == plain.initial_weights != session.trained_from
    pixels = session.data.train.images[:90].float()
    images = {
        "raw": pixels, "unit": pixels / 255, "standard": prepare_images(session, 90)
    }[values]  # fmt: skip
    layer, before = session.network[0], plain.network[0]
    with torch.no_grad():
        z = layer(images.to(layer.weight.device)).double()
    variance = z.var((0, 2, 3), correction=0)
    torch.testing.assert_close(variance.mean().item(), 1.0, rtol=1e-4, atol=0)
    factor = (layer.weight / before.weight).detach()
    torch.testing.assert_close(factor, factor.mean().expand_as(factor), rtol=1e-4, atol=0)
    assert torch.equal(layer.bias, before.bias)


def test_outputs_that_do_not_vary_are_not_scaled():
    recipe = make_quick(model__start="scaled")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    message = "layer '0': its outputs have the variance 0 on the training images"
    with pytest.raises(TrActValueError, match=message):
        start.start_layers(model, ["0"], recipe, iter([torch.zeros(2, 3, 8, 8)]))


def test_a_layer_that_changes_its_weight_is_not_scaled():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) / self.weight.norm()

    model = nn.Sequential(Standardised(3, 4, 3), nn.ReLU())
    for has_tract in (False, True):
        if has_tract:
            apply_tract(model, layers="0")
        with pytest.raises(UnsupportedLayerError, match="Standardised has a forward of its own"):
            start.start_layers(model, ["0"], make_quick(model__start="scaled"), iter([]))


def test_signs_and_few_images_reach_the_start(tmp_path):
    both, one = (
        open_session(tmp_path, model__start="eigen", model__start_signs=signs).network[0].weight
        for signs in (True, False)
    )
    half = len(both) // 2
    torch.testing.assert_close(both[:half], -both[half:])
    assert (one[:half] + one[half:]).abs().max() > 0.01
    small = open_session(tmp_path, model__start="eigen", model__start_images=10**6)
    assert small.trained_from != small.initial_weights


def test_the_batches_of_an_arm_with_another_start_are_those_of_plain(tmp_path):
    """The start draws no random number that training draws."""
    changes = {"model__name": "small_models:make_noisy", "tract__enabled": False}
    plain = open_session(tmp_path, **changes)
    states = [torch.get_rng_state()]
    eigen = open_session(tmp_path, **changes, model__start="eigen")
    states.append(torch.get_rng_state())
    assert torch.equal(*states)
    shares = [next(session.batches.read(0, 0))[0] for session in (plain, eigen)]
    assert torch.equal(shares[0].images, shares[1].images)


def test_a_frozen_weight_keeps_its_start_and_the_bias_is_trained(tmp_path):
    fields = {"tract__enabled": False, "model__start": "eigen", "run__ema": 0.9}
    recipe = make_quick(**fields, optimizer__first_layer_frozen=True, optimizer__weight_decay=0.1)
    before = open_session(tmp_path, **fields).network.state_dict()
    record = train(recipe, tmp_path, ignore)
    folder = RunFolder(tmp_path, recipe)
    for file in (folder.weights_path, folder.path / "ema.safetensors"):
        weights = safetensors.torch.load_file(file)
        assert torch.equal(weights["0.weight"], before["0.weight"])
        assert not torch.equal(weights["0.bias"], before["0.bias"])
        assert not torch.equal(weights["4.weight"], before["4.weight"])
    assert record["model"]["trained_from"] == open_session(tmp_path, **fields).trained_from
    assert record["model"]["trained_from"] != record["model"]["initial_weights"]
    assert 0 < record["epochs"][0]["first_layer_grad_norm"] < record["epochs"][0]["grad_norm"]


def test_a_frozen_layer_without_a_bias_has_no_gradient(tmp_path):
    recipe = make_quick(
        **{"model__name": "lab:resnet18-tract", "model__arguments.width": 2},
        tract__enabled=False, optimizer__first_layer_frozen=True, schedule__epochs=1,
        data__train_images=64, data__test_images=16,
    )  # fmt: skip
    record = train(recipe, tmp_path, ignore)
    assert record["status"] == "complete"
    assert record["epochs"][0]["first_layer_grad_norm"] == 0
    assert record["epochs"][0]["grad_norm"] > 0


def test_only_the_weights_of_the_named_layers_are_frozen():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    freeze_layers(model, ["0"])
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["0.bias", "1.weight", "1.bias"]


def count_starts(monkeypatch):
    """Return a list that grows by one at every whitened start."""
    calls = []
    real = start.whiten

    def whiten_and_count(*arguments, **options):
        calls.append(options["filters"])
        return real(*arguments, **options)

    monkeypatch.setattr(start, "whiten", whiten_and_count)
    return calls


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("frozen", [False, True])
def test_a_resumed_run_keeps_its_start(tmp_path, monkeypatch, frozen):
    recipe = make_quick(
        model__start="eigen", run__ema=0.9, tract__enabled=not frozen,
        optimizer__first_layer_frozen=frozen,
    )  # fmt: skip
    calls = count_starts(monkeypatch)
    whole = train(recipe, tmp_path / "whole", ignore)
    assert calls == ["eigen"]
    with pytest.raises(InterruptedRunError):
        train(recipe, tmp_path / "parts", stop_after([2]))
    assert calls == ["eigen"] * 2
    resumed = train(recipe, tmp_path / "parts", ignore)
    assert calls == ["eigen"] * 2
    assert resumed["sessions"] == 2
    assert without_times(resumed) == without_times(whole)
    weights = [
        safetensors.torch.load_file(RunFolder(tmp_path / part, recipe).path / "ema.safetensors")
        for part in ("whole", "parts")
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_run_whose_checkpoints_are_damaged_gets_its_start_again(tmp_path, monkeypatch):
    recipe = make_quick(model__start="random")
    whole = train(recipe, tmp_path / "whole", ignore)
    with pytest.raises(InterruptedRunError):
        train(recipe, tmp_path / "parts", stop_after([2]))
    for path in (tmp_path / "parts").rglob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:100])
    calls = count_starts(monkeypatch)
    again = train(recipe, tmp_path / "parts", ignore)
    assert calls == ["random"]
    assert without_times(again) == without_times(whole)
