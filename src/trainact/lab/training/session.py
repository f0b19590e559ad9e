"""What a run is made of in memory: network, optimizers, batches, and how far it has come."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainact import accumulate
from trainact.errors import TrActValueError
from trainact.lab.metric import ACCURACY, Metric
from trainact.lab.models.build import build_recipe_model, hash_weights, load_initial_weights
from trainact.lab.models.pretrained import LoadedWeights
from trainact.lab.randomness import capture_states, restore_states, seed_everything
from trainact.lab.recipes.recipe import Recipe
from trainact.lab.training.batches import Batches, EvaluationBatches, measure_standard
from trainact.lab.training.evaluate import evaluate
from trainact.lab.training.inputs import check_fingerprint
from trainact.lab.training.loss import sum_losses
from trainact.lab.training.machine import expect_skipped_parameters, find_place
from trainact.lab.training.optimizers import (
    find_first_parameters,
    make_optimizers,
    rate_at,
    set_rate,
)
from trainact.lab.training.stepping import Stepper

__all__ = ["TOTALS", "Session"]

TOTALS = ("loss", "correct", "seen", "first_layer_grad_norm", "grad_norm", "finite_steps")
"""What is summed over an epoch: over images the first three, the others over steps whose gradient
is finite. It is not where fp16 overflows: such a step is skipped, and where the loss itself is not
finite, so are its images."""


class Session:
    """A run between two checkpoints: of a classifier, unless a subclass says otherwise.

    Attributes:
        metric: what the run is judged by; ``counts`` names the `TOTALS` that a record keeps.
        weights: what was read from the recipe's file of initial weights, if it has one.
        network: the model itself; ``model`` is the same behind DDP, autocast and compiler.
        epoch: epochs that are done; ``step`` counts the steps done in the next one.
        totals: float64 [6], see `TOTALS`, over the steps done in this epoch.
        history: the metrics of each epoch that is done.
    """

    metric: Metric = ACCURACY
    counts: tuple[str, ...] = ("correct", "seen")

    def __init__(self, recipe: Recipe, data: Any, accelerator: Accelerator) -> None:
        self.recipe, self.data, self.accelerator = recipe, data, accelerator
        self.place = find_place(accelerator)
        self.standard = measure_standard(data, recipe.data)
        seed = recipe.run.seed
        seed_everything(seed, "weights")
        self.network, self.first_layers = self.build(recipe, data)
        self.weights = self.load_weights()
        self.initial_weights = hash_weights(self.network)
        if recipe.run.channels_last:
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.to(accelerator.device)
        self.average = None
        if recipe.run.ema:
            decay = get_ema_multi_avg_fn(recipe.run.ema)
            self.average = AveragedModel(self.network, multi_avg_fn=decay, use_buffers=True)
        optimizers = make_optimizers(self.network, self.first_layers, recipe.optimizer)
        expect_skipped_parameters(accelerator, self.network)
        self.model, *self.optimizers = accelerator.prepare(self.network, *optimizers)
        self.stepper = Stepper(accelerator, self.network, self.optimizers)
        if recipe.run.compile:
            self.model.compile()
        self.batches = self.open_batches()
        self._check_shares()
        self.first_parameters = find_first_parameters(self.network, self.first_layers)
        self.trained = [p for p in self.network.parameters() if p.requires_grad]
        self.epoch, self.step, self.seconds, self.sessions = 0, 0, 0.0, 1
        self.order = ""
        self.history: list[dict[str, Any]] = []
        self.clear_totals()
        seed_everything(seed, "training", self.place.rank)

    @staticmethod
    def build(recipe: Recipe, data: Any) -> tuple[nn.Module, list[str]]:
        """Return the network and the names of its first layers, TrAct in them where it is on."""
        return build_recipe_model(recipe, data)

    def load_weights(self) -> LoadedWeights | None:
        """Give the network its initial weights, where the recipe names a file; return which."""
        return load_initial_weights(self.recipe, self.network)

    def open_batches(self) -> Batches:
        """Return the batches to train on, and open those to test on."""
        data, fields = self.data, self.recipe.data
        self.evaluation = EvaluationBatches(data.test, fields, self.standard, self.place)
        seed, classes = self.recipe.run.seed, len(data.classes)
        return Batches(data.train, fields, self.standard, seed, self.place, classes)

    @property
    def reads_weights(self) -> bool:
        """Whether a file says what the network begins with."""
        return bool(self.recipe.model.weights or self.recipe.model.arguments.get("weights"))

    def clear_totals(self) -> None:
        """Begin the sums of an epoch."""
        exact = torch.float32 if self.place.device.type == "mps" else torch.float64
        self.totals = torch.zeros(len(TOTALS), dtype=exact, device=self.place.device)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        steps = self.batches.steps
        done = self.epoch * steps + self.step
        return rate_at(self.recipe.schedule, self.recipe.optimizer.lr, done, steps)

    @property
    def rate_at_start(self) -> float:
        """The learning rate of this epoch's first step."""
        steps = self.batches.steps
        return rate_at(self.recipe.schedule, self.recipe.optimizer.lr, self.epoch * steps, steps)

    def take_step(self, share: Any, count: int) -> None:
        """Train on this rank's share of a batch of ``count`` images."""
        set_rate(self.optimizers, self.rate)
        self.stepper.begin()
        micro_batches = self.recipe.run.accumulation
        loss = torch.zeros((), device=self.place.device)
        correct = torch.zeros((), device=self.place.device)
        with self._pool_moments():
            for number, part in enumerate(self.split(share), 1):
                with self._share_gradients(number == micro_batches):
                    part_loss, part_correct = self.measure(part)
                    self.accelerator.backward(part_loss / count * self.place.ranks)
                loss += part_loss.detach()
                correct += part_correct
        first, whole = self._finish_gradients()
        stepped = self.stepper.finish(whole)
        if self.average is not None and stepped:
            self.average.update_parameters(self.network)
        seen = torch.tensor(len(share.images), device=self.place.device)
        sums = torch.stack([loss, correct, seen])
        if self.accelerator.scaler is not None:
            sums = torch.where(loss.isfinite(), sums, 0)  # an overflow; the step was skipped
        norms = torch.stack([first, whole, torch.ones_like(whole)])
        norms = torch.where(whole.isfinite(), norms, 0) / self.place.ranks  # summed over them later
        self.totals += torch.cat([sums, norms])
        self.step += 1

    def split(self, share: Any) -> list[Any]:
        """Return the micro-batches of a share."""
        micro_batches = self.recipe.run.accumulation
        columns = (column.tensor_split(micro_batches) for column in share)
        return list(map(type(share), *columns))

    def measure(self, part: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of a micro-batch, summed over its images, and how many are correct."""
        logits = self.model(self._lay_out(part.images)).float()
        main = part.labels if part.labels.ndim == 1 else part.labels.argmax(1)
        correct = (logits.detach().argmax(1) == main).sum()
        return sum_losses(logits, part.labels, self.recipe.optimizer), correct

    def evaluate(self) -> dict[str, float]:
        """Return what the test images say about the network, and about the average if there is."""
        tested = evaluate(self.network, self.evaluation.read(), self.accelerator)
        if self.average is not None:
            averaged = evaluate(self.average.module, self.evaluation.read(), self.accelerator)
            tested["ema_correct"] = averaged["test_correct"]
        return tested

    def _finish_gradients(self) -> tuple[Tensor, Tensor]:
        """Clip if the recipe says so; return the first layer's and the whole norm before that."""
        self.accelerator.unscale_gradients()
        gradients = [p.grad for p in self.trained if p.grad is not None]
        whole = get_total_norm(gradients)
        first = get_total_norm([p.grad for p in self.first_parameters if p.grad is not None])
        if self.recipe.optimizer.clip_norm:
            clip_grads_with_norm_(self.trained, self.recipe.optimizer.clip_norm, whole)
        return first, whole

    def _pool_moments(self) -> contextlib.AbstractContextManager[None]:
        several = self.recipe.run.accumulation > 1
        if several and self.recipe.tract.enabled:
            return accumulate(self.model)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _share_gradients(self, is_last: bool) -> Iterator[None]:
        with contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.model):
            yield

    def _lay_out(self, images: Tensor) -> Tensor:
        if self.recipe.run.channels_last:
            return images.contiguous(memory_format=torch.channels_last)
        return images

    def _check_shares(self) -> None:
        if self.batches.smallest_share < self.recipe.run.accumulation:
            smallest, whole = self.batches.smallest, self.recipe.data.batch_size
            raise TrActValueError(
                f"{'a' if smallest == whole else 'the last'} batch has {smallest} images for "
                f"{self.place.ranks} ranks with {self.recipe.run.accumulation} micro-batches each; "
                + ("set " if smallest == whole else "set data.drop_last=true or ")
                + "another data.batch_size"
                + (", of two images a part." if self.batches.mixes else ".")
            )

    def state(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on; every rank must call it."""
        states = [capture_states()]
        if self.place.ranks > 1:
            states = gather_object(states)
        scaler = self.accelerator.scaler
        return {
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "average": None if self.average is None else self.average.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "randomness": states,
            "totals": self.totals,
            "fingerprint": self.data.fingerprint,
            **{key: getattr(self, key) for key in self._PROGRESS},
        }

    _PROGRESS = ("epoch", "step", "seconds", "sessions", "order", "history", "initial_weights")

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on where `state` was taken; rank 0 has it, the others receive it from there."""
        if self.place.ranks > 1:
            [state] = broadcast_object_list([state])
        if state is None:
            return
        check_fingerprint(self.data, state["fingerprint"])
        if self.reads_weights and state["initial_weights"] != self.initial_weights:
            raise TrActValueError(
                "the file of initial weights does not hold what this run began with; bring the old "
                "one back, or choose another --out to begin again."
            )
        self.network.load_state_dict(state["network"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        for key in self._PROGRESS:
            setattr(self, key, state[key])
        self.totals = state["totals"].to(self.totals)
        if len(state["randomness"]) == self.place.ranks:
            restore_states(state["randomness"][self.place.rank])
        self.sessions += 1
