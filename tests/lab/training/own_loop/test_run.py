"""What a run does with a model, and what it refuses."""

import copy
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from loop_cases import (
    make_sgd,
    measure_accuracy,
    read_photos,
    start_run,
    train,
    train_epoch,
)
from small_models import make_tiny
from trainact import TrActConv2d, apply_tract, whiten
from trainact.errors import TrActError, TrActTypeError
from trainact.lab.training.train import DivergedError


def make_model():
    torch.manual_seed(0)
    return make_tiny(8)


def test_an_arm_is_what_a_person_would_do_by_hand():
    trained = train(start_run("tract-0.1", epochs=2))
    torch.manual_seed(0)
    model = make_tiny(8)
    apply_tract(model, 0.1)
    optimizer = make_sgd(model.parameters())
    for _ in range(2):
        train_epoch(model, optimizer)
    for one, other in zip(trained.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_plain_changes_nothing():
    trained = train(start_run())
    torch.manual_seed(0)
    model = make_tiny(8)
    train_epoch(model, make_sgd(model.parameters()))
    assert torch.equal(trained[0].weight, model[0].weight)


def test_a_start_takes_images_in_any_form_and_no_random_number():
    (images, labels), _ = read_photos()
    expected = make_model()
    whiten(expected, images)
    pairs = list(zip(images, labels, strict=True))
    for given in (
        images,
        [images],
        DataLoader(pairs, batch_size=320, shuffle=True),
        iter([(images, labels)]),
    ):
        model = make_model()
        run = start_run("eigen+tract-0.1")
        states = random.getstate(), torch.get_rng_state()
        assert run.prepare(model, given) is model
        assert states[0] == random.getstate()
        assert torch.equal(states[1], torch.get_rng_state())
        assert torch.allclose(model[0].weight, expected[0].weight, atol=1e-3)
        assert isinstance(model[0], TrActConv2d)
        assert run.prepared.initial_weights != run.prepared.trained_from


def test_a_start_reads_no_more_images_than_the_recipe_says():
    read = []

    class Batches:
        def __iter__(self):
            for number in range(10):
                read.append(number)
                yield torch.rand(2000, 3, 8, 8)

    start_run("eigen+frozen").prepare(make_model(), Batches())
    assert max(read) == 2  # 5,000 images


def test_a_frozen_layer_keeps_its_weight_and_trains_its_bias():
    model = train(start_run("frozen"))
    fresh = make_model()
    assert torch.equal(model[0].weight, fresh[0].weight)
    assert not torch.equal(model[0].bias, fresh[0].bias)


def test_mac_reads_the_images_at_its_first_step_and_draws_no_random_number():
    (images, labels), _ = read_photos()
    loader = DataLoader(list(zip(images, labels, strict=True)), batch_size=80, shuffle=True)
    run = start_run("mac")
    model = run.prepare(make_model(), loader)
    optimizer = run.optimizer(model, make_sgd)
    model(images[:32]).square().sum().backward()
    state = torch.get_rng_state()
    optimizer.step()
    assert torch.equal(state, torch.get_rng_state())
    run = start_run("mac")
    model = run.prepare(
        nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), [{"input": images[:, :, ::4, ::4]}]
    )
    optimizer = run.optimizer(model, make_sgd)
    model(images[:32, :, ::4, ::4]).sum().backward()
    with pytest.raises(TrActTypeError, match="take batches that are tensors"):
        optimizer.step()


def test_mac_takes_all_images_of_an_iterator():
    batches = [torch.rand(2000, 3, 8, 8) for _ in range(5)]
    weights = []
    for given in (batches, iter(batches)):
        run = start_run("mac")
        model = run.prepare(make_model(), given)
        optimizer = run.optimizer(model, make_sgd)
        model(batches[0][:8]).square().sum().backward()
        optimizer.step()
        weights.append(model[0].weight)
    assert torch.equal(*weights)


def test_the_first_batch_shows_what_the_model_takes():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    run = start_run("tract-0.1")
    run.prepare(model, torch.rand(5, 3, 2, 2))
    assert run.prepared.first_layers == ["1"]
    run = start_run("tract-0.1")
    run.prepare(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), layers="1")
    assert run.prepared.first_layers == ["1"]


def test_a_module_with_extra_state_is_hashed():
    class Counting(nn.Sequential):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            del state

    run = start_run()
    run.prepare(Counting(nn.Conv2d(3, 4, 3)))
    assert len(run.prepared.initial_weights) == 64


def test_the_time_of_an_epoch_is_the_mean_since_the_last_log():
    run = start_run(epochs=10)
    run.prepare(make_model())
    run.log(4, accuracy=0.5)
    run.log(10, accuracy=torch.tensor(1.0), loss=torch.tensor(0.3))
    one, other = run.history
    assert run.seconds == pytest.approx(4 * one["train_seconds"] + 6 * other["train_seconds"])
    assert [one["epoch"], one["train_loss"], one["accuracy"]] == [4, None, 0.5]
    assert other["train_loss"] == pytest.approx(0.3)


def test_a_loss_that_is_not_finite_ends_the_run():
    run = start_run(epochs=2)
    run.prepare(make_model())
    run.log(1, accuracy=0.5, loss=1.0)
    with pytest.raises(DivergedError, match="the loss became nan in epoch 2"):
        run.log(2, accuracy=0.5, loss=float("nan"))
    assert run.check_end() is run.prepared
    assert len(run.history) == 1


def log_twice(run):
    run.prepare(make_model())
    run.log(1, accuracy=0.5)
    run.log(1, accuracy=0.5)


def prepare_twice(run):
    run.prepare(make_model())
    run.prepare(make_model())


def make_two_optimizers(run):
    model = run.prepare(make_model())
    run.optimizer(model, make_sgd)
    run.optimizer(model, make_sgd)


def log(run, epoch=1, **values):
    run.prepare(make_model())
    run.log(epoch, **values)


MISUSES = {
    "plain": [
        (lambda run: run.log(1, accuracy=0.5), r"run.log was called before run.prepare\(model\)"),
        (
            lambda run: run.optimizer(make_model(), make_sgd),
            "run.optimizer was called before run.prepare",
        ),
        (prepare_twice, "run.prepare was called twice"),
        (make_two_optimizers, "run.optimizer was called twice"),
        (lambda run: run.prepare("model"), "run.prepare takes an nn.Module"),
        (lambda run: log(run, 0, accuracy=0.5), "1 after the first; got 0. Pass epoch"),
        (lambda run: log(run, 4, accuracy=0.5), "up to run.epochs = 3; got 4"),
        (log_twice, "run.log takes epochs in order.*; got 1 after 1"),
        (lambda run: log(run, accuracy=87.5), "from 0 to 1; got 87.5. Divide per cent by 100"),
        (lambda run: log(run, accuracy=float("nan")), "from 0 to 1; got nan"),
        (
            lambda run: run.optimizer(run.prepare(make_model()), lambda parameters: None),
            "returns an optimizer of torch; it returned a NoneType",
        ),
    ],
    "lr-3": [(lambda run: log(run, accuracy=0.5), "the arm lr-3, which changes the optimizer")],
    "eigen": [
        (lambda run: run.prepare(make_model()), r"give them to run.prepare\(model, images=...\)"),
        (lambda run: run.prepare(make_model(), 3), "images takes one batch or an iterable"),
    ],
}


@pytest.mark.parametrize(
    ("arm", "misuse", "message"),
    [(arm, *case) for arm, cases in MISUSES.items() for case in cases],
)
def test_a_misuse_is_one_clear_error(arm, misuse, message):
    with pytest.raises(TrActError, match=message):
        misuse(start_run(arm, epochs=3))


def train_another(run):
    run.prepare(make_model())
    other = copy.deepcopy(run.prepared.network)
    train_epoch(other, make_sgd(other.parameters()))
    run.log(1, accuracy=measure_accuracy(other))


def never_step(run):
    model = run.prepare(make_model())
    run.optimizer(model, make_sgd)
    train_epoch(model, make_sgd(model.parameters()))
    run.log(1, accuracy=0.5)


def lose_tract(run):
    model = run.prepare(make_model())
    train_epoch(model, make_sgd(model.parameters()))
    model[0] = nn.Conv2d(3, 8, 4, stride=4)
    run.log(1, accuracy=0.5)


@pytest.mark.parametrize(
    ("arm", "loop", "epochs", "message"),
    [
        ("tract-0.1", lambda run: None, 1, "never called run.prepare.*arm tract-0.1 was not"),
        ("plain", lambda run: run.prepare(make_model()), 1, "train logged nothing; call run.log"),
        ("plain", lambda run: log(run, accuracy=0.5), 2, "after epoch 1 of 2"),
        ("lr-3", lambda run: run.prepare(make_model()), 1, "never called run.optimizer"),
        ("plain", train_another, 1, "trained another model than the one that run.prepare got"),
        ("lr-3", never_step, 1, r"never called step\(\) of the optimizer"),
        ("tract-0.1", lose_tract, 1, "a plain layer has replaced it"),
    ],
)
def test_a_loop_that_leaves_something_out_is_refused_at_its_end(arm, loop, epochs, message):
    run = start_run(arm, epochs=epochs)
    loop(run)
    with pytest.raises(TrActError, match=message):
        run.check_end()
