"""Training loops as users write them, on a few photographs."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from lab_helpers import make_quick
from small_models import make_tiny
from trainact.lab.data import load_data
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.own_loops import make_function_recipe, plan_loop
from trainact.lab.training.own_loop.run import Run


@functools.cache
def read_photos():
    """Return (images, labels) for training and for testing; images are standardised."""
    data = load_data(make_quick().data)
    return tuple(
        ((part.images.float() / 255 - 0.5) / 0.25, part.labels) for part in (data.train, data.test)
    )


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def plan_run(arm="plain", epochs=1, seed=0):
    """Return the recipe of one run of a function."""
    [recipe] = plan_loop(
        make_function_recipe("train", {}), parse_arms([arm], [0.1]), (epochs,), (seed,)
    )
    return recipe


def start_run(arm="plain", epochs=1, seed=0):
    """Return a run that leaves no record."""
    return Run(plan_run(arm, epochs, seed))


def train_epoch(model, optimizer):
    """Take ten steps; return the last loss."""
    (images, labels), _ = read_photos()
    model.train()
    for chosen in torch.randperm(len(images)).split(32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def measure_accuracy(model):
    _, (images, labels) = read_photos()
    return (model.eval()(images).argmax(1) == labels).float().mean().item()


def train(run, make_model=make_tiny) -> nn.Module:
    """Train as a user would who calls all hooks; return the model."""
    torch.manual_seed(run.seed)
    model = run.prepare(make_model(8), read_photos()[0][0][:64])
    optimizer = run.optimizer(model, make_sgd)
    for epoch in range(run.epochs):
        loss = train_epoch(model, optimizer)
        run.log(epoch + 1, accuracy=measure_accuracy(model), loss=loss)
    return model
