"""The run that a training loop of the user's own gets: it applies the arm and keeps the metrics."""

import math
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from trainact.errors import TrActError, TrActTypeError, TrActValueError
from trainact.image_batches import list_batches, move_call, take_images
from trainact.lab.models.build import add_tract, hash_weights
from trainact.lab.recipes.own_loops import describe_loop, needs_images, needs_optimizer
from trainact.lab.recipes.recipe import Recipe
from trainact.lab.records.events import Event, EventHandler
from trainact.lab.training.first_layer.gradient_rules import make_gradient_rule
from trainact.lab.training.own_loop.optimizers import (
    adapt_optimizer,
    apply_before_steps,
    sum_tensor_over_ranks,
)
from trainact.lab.training.start import freeze_layers, start_layers
from trainact.lab.training.train import DivergedError
from trainact.layer_checks import check_model, select_layers
from trainact.random_states import kept_random_states
from trainact.wrapped_layers import check_tract

__all__ = ["PreparedModel", "Run"]

Model = TypeVar("Model", bound=nn.Module)
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class PreparedModel(NamedTuple):
    """The model that `Run.prepare` got."""

    network: nn.Module
    first_layers: list[str]
    initial_weights: str  # hash of the weights as they came, by which runs are paired
    trained_from: str  # hash of the weights after the arm's start


class Run:
    """One run of a training loop of your own: an arm, a number of epochs and a seed.

    Call `prepare` with the new model, `optimizer` to make the optimizer, and `log` after epochs.

    Attributes:
        arm: the name of the arm.
        seed: for all random numbers of the run.
        epochs: to train for.
    """

    def __init__(
        self,
        recipe: Recipe,
        report: EventHandler | None = None,
        check_start: Callable[[str], None] | None = None,
    ) -> None:
        """Start the run of a recipe.

        Args:
            recipe: the arm, the epochs and the seed.
            report: receives the events.
            check_start: raises if the hash of the initial weights is not that of the other arms.
        """
        self.recipe, self.report, self.check_start = recipe, report, check_start
        self.arm: str = recipe.arm
        self.seed: int = recipe.run.seed
        self.epochs: int = recipe.schedule.epochs
        self.prepared: PreparedModel | None = None
        self.rule: Any = None
        self.history: list[dict[str, Any]] = []
        self.failure: str | None = None  # why the run diverged
        self.seconds = 0.0
        self._steps: int | None = None  # of the optimizer; None before there is one
        self._clock = time.perf_counter()

    def __repr__(self) -> str:
        """Return arm, seed and epochs."""
        return f"Run(arm={self.arm!r}, seed={self.seed}, epochs={self.epochs})"

    def prepare(self, model: Model, images: Any = None, *, layers: Any = None) -> Model:
        """Apply the arm to a model with its initial weights, in place, and return it.

        First the weights are hashed as they came: runs of one seed must start from the same ones.
        Then the first layer gets the arm's start, is frozen, and gets the arm's gradient. Global
        random states stay as they were. Call it once, before the optimizer is made.

        Args:
            model: the model; its first layer is found as by :func:`trainact.find_first_layers`.
            images: training images as the model gets them: a batch, or batches such as those of a
                DataLoader. A start takes the first 5,000 of them, ``mac`` all; other arms need
                none, but the first batch also shows what the model takes.
            layers: names of the first layers, if they are not found.

        Raises:
            TrActError: a second call, weights that differ from those of another arm, images that
                the arm needs and did not get, or a layer that it cannot train.
        """
        if self.prepared is not None:
            raise TrActError("run.prepare was called twice; a run trains one model.")
        check_model(model, "run.prepare")
        recipe = self.recipe
        if images is None and needs_images(recipe):
            raise TrActValueError(
                f"the arm {self.arm} is computed from training images: give them to "
                "run.prepare(model, images=...), as a batch or as a DataLoader."
            )
        with kept_random_states(model):
            if hasattr(images, "__next__"):  # it can be read only once
                is_mac = recipe.optimizer.first_layer_rule == "mac"
                images = list(images if is_mac else _take_images(images, recipe.model.start_images))
            names = list(select_layers(model, layers, _find_example(images)))
            initial = hash_weights(model)
            if self.check_start is not None:
                self.check_start(initial)
            add_tract(model, names, recipe.tract)
            if recipe.model.start != "default":
                start = _take_images(images, recipe.model.start_images)
                if recipe.model.start == "scaled":
                    start = _read_tensors(start, model)
                start_layers(model, names, recipe, start)
        if recipe.optimizer.first_layer_frozen:
            freeze_layers(model, names)

        def read_images() -> Iterator[Tensor]:
            with kept_random_states(model):
                yield from _read_tensors(images, model)

        self.rule = make_gradient_rule(recipe, model, names, read_images, sum_tensor_over_ranks)
        self.prepared = PreparedModel(model, names, initial, hash_weights(model))
        self._clock = time.perf_counter()
        return model

    def optimizer(self, model: nn.Module, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Return the optimizer that ``make`` makes, with the arm's changes for the first layer.

            run.optimizer(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1))

        A learning-rate multiplier, and a rule that changes the gradient, act while the optimizer
        steps; ``lr`` of its groups stays what your schedule sets. If the arm has its own optimizer
        for some weights, both are returned as one. The first layer has its own group in every arm.

        Args:
            model: the model that `prepare` got, or a wrapper of it.
            make: gets the trainable parameters and returns an optimizer of torch. It may ignore
                them and make groups of its own, of the same model.

        Raises:
            TrActError: a call before `prepare`, a second call, or an optimizer that does not train
                the first layer.
        """
        prepared = self._find_prepared("run.optimizer")
        if self._steps is not None:
            raise TrActError("run.optimizer was called twice; a run has one optimizer.")
        found = make([p for p in model.parameters() if p.requires_grad])
        if not isinstance(found, torch.optim.Optimizer):
            raise TrActTypeError(
                "run.optimizer(model, make) takes a function that gets a list of parameters and "
                f"returns an optimizer of torch; it returned a {type(found).__name__}."
            )
        adapted = adapt_optimizer(found, prepared.network, prepared.first_layers, self.recipe)
        if self.rule is not None:
            apply_before_steps(adapted, self.rule)
        self._steps = 0
        found.register_step_post_hook(self._count_step)
        self._clock = time.perf_counter()
        return adapted

    def log(
        self, epoch: int, *, accuracy: float | Tensor, loss: float | Tensor | None = None
    ) -> None:
        """Keep the metrics after an epoch; the last epoch must be logged.

        The time since the last call, or since the run was prepared, counts as training time.

        Args:
            epoch: finished epochs: 1 after the first.
            accuracy: test accuracy from 0 to 1.
            loss: training loss. If it is not finite, the run ends as diverged.

        Raises:
            TrActError: a call before `prepare`, a value that is not accepted, or an arm that
                changes the optimizer and was not given one.
            DivergedError: the loss is not finite; let it pass, so that the run ends.
        """
        self._find_prepared("run.log")
        self._check_optimizer()
        epoch = operator.index(epoch)
        last = self.history[-1]["epoch"] if self.history else 0
        self._check_epoch(epoch, last)
        accuracy, loss = _read_number(accuracy), None if loss is None else _read_number(loss)
        if loss is not None and not math.isfinite(loss):
            self.failure = f"the loss became {loss} in epoch {epoch}"
            raise DivergedError(self.failure)
        if not 0 <= accuracy <= 1:
            raise TrActValueError(
                f"accuracy is a number from 0 to 1; got {accuracy:g}. Divide per cent by 100."
            )
        seconds = time.perf_counter() - self._clock
        self.seconds += seconds
        self.history.append(
            {
                "epoch": epoch,
                "train_loss": loss,
                "accuracy": accuracy,
                "train_seconds": seconds / (epoch - last),
            }
        )
        if self.report is not None:
            self.report(
                Event(
                    "epoch",
                    epoch=epoch,
                    epochs=self.epochs,
                    loss=loss,
                    accuracy=100 * accuracy,
                    seconds=seconds,
                )
            )
        self._clock = time.perf_counter()

    def check_end(self) -> PreparedModel:
        """Return the model if the loop did all that a run needs.

        Raises:
            TrActError: a hook that the arm needs was not called, the model was not trained or lost
                TrAct, or the last epoch was not logged.
        """
        loop = describe_loop(self.recipe)
        if self.prepared is None:
            raise TrActError(
                f"{loop} never called run.prepare(model), so the arm {self.arm} was not applied "
                "(a script gets its run from trainact.lab.current_run())."
            )
        self._check_optimizer()
        if self.failure is not None:
            return self.prepared
        if not self.history:
            raise TrActError(
                f"{loop} logged nothing; call run.log(epoch, accuracy=...) after every epoch, or "
                "at least after the last."
            )
        last = self.history[-1]["epoch"]
        if last != self.epochs:
            raise TrActError(
                f"{loop} ended after epoch {last} of {self.epochs} (run.epochs); train for "
                "run.epochs epochs, and count finished epochs in run.log: 1 after the first."
            )
        if self._steps == 0:
            raise TrActError(
                f"{loop} never called step() of the optimizer that run.optimizer returned."
            )
        check_tract(self.prepared.network)
        if hash_weights(self.prepared.network) == self.prepared.trained_from:
            raise TrActError(
                f"{loop} trained another model than the one that run.prepare got: its weights are "
                "what they were."
            )
        return self.prepared

    def _find_prepared(self, hook: str) -> PreparedModel:
        if self.prepared is None:
            raise TrActError(f"{hook} was called before run.prepare(model).")
        return self.prepared

    def _check_optimizer(self) -> None:
        if self._steps is None and needs_optimizer(self.recipe):
            raise TrActError(
                f"{describe_loop(self.recipe)} never called run.optimizer(model, make), so the arm "
                f"{self.arm}, which changes the optimizer, was not applied."
            )

    def _check_epoch(self, epoch: int, last: int) -> None:
        if epoch == 0:
            raise TrActValueError(
                "run.log counts finished epochs, 1 after the first; got 0. Pass epoch + 1."
            )
        if not last < epoch <= self.epochs:
            raise TrActValueError(
                f"run.log takes epochs in order, up to run.epochs = {self.epochs}; got {epoch}"
                + (f" after {last}." if last else ".")
            )

    def _count_step(self, *_: Any) -> None:
        assert self._steps is not None
        self._steps += 1


def _read_number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _take_images(images: Any, most: int) -> Iterator[Any]:
    """Yield batches until they hold so many images."""
    for args, kwargs in take_images(list_batches(images), most):
        yield kwargs or args


def _find_example(images: Any) -> Any:
    """Return the first batch as an example of the model's input; None without images."""
    if images is None:
        return None
    args, kwargs = next(list_batches(images))
    return kwargs or args


def _read_tensors(images: Any, model: nn.Module) -> Iterator[Tensor]:
    """Yield batches of images, on the model's device."""
    parameter = next(model.parameters())
    for call in list_batches(images):
        args, _ = move_call(call, parameter.device, parameter.dtype)
        if not args or not isinstance(args[0], Tensor):
            raise TrActTypeError("the arms mac and scaled take batches that are tensors of images.")
        yield args[0]
