"""A run in memory: the network, its optimizers and its batches; the loss of a classifier."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast, gather_object
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainact import accumulate, load_tract_state, tract_state
from trainact.errors import TrActValueError
from trainact.lab.metric import ACCURACY, Metric
from trainact.lab.models.build import build_recipe_model, hash_weights, load_initial_weights
from trainact.lab.models.pretrained import LoadedWeights
from trainact.lab.randomness import capture_states, restore_states, seed_everything
from trainact.lab.recipes.recipe import OptimizerFields, Recipe
from trainact.lab.training.batches import (
    Batches,
    EvaluationBatches,
    Place,
    Share,
    measure_standard,
)
from trainact.lab.training.first_layer.gradient_rules import make_gradient_rule
from trainact.lab.training.groups import scale_groups
from trainact.lab.training.lookahead import Lookahead
from trainact.lab.training.machine import (
    allow_unused_parameters,
    find_exact_dtype,
    sum_over_ranks,
)
from trainact.lab.training.optimizers import (
    Stepper,
    find_first_parameters,
    make_optimizers,
    rate_at,
    set_rate,
)
from trainact.lab.training.resume_checks import check_data
from trainact.lab.training.start import freeze_layers, read_start_images, start_layers
from trainact.lab.training.views import ViewAverage

__all__ = ["Session", "count_correct", "evaluate_classifier", "sum_losses"]


class Session:
    """Trains and evaluates a classifier; subclasses do the same for other networks.

    It takes steps and returns what it measured, but does not know how many it has taken: that is in
    `Progress`. ``network`` is the model itself, ``model`` the same behind DDP, autocast and the
    compiler, and ``average`` its exponential moving average, if the recipe has one. Runs are paired
    by ``initial_weights``, the hash before the first layer gets its start; ``trained_from`` is the
    hash after it. A ``resumed`` session needs no start, because `load` replaces the weights.
    """

    metric: Metric = ACCURACY
    counts: tuple[str, ...] = ("correct", "seen")  # the totals that a record keeps

    def __init__(
        self, recipe: Recipe, data: Any, accelerator: Accelerator, resumed: bool = False
    ) -> None:
        self.recipe, self.data, self.accelerator = recipe, data, accelerator
        rank, ranks = accelerator.process_index, accelerator.num_processes
        self.place = Place(rank, ranks, accelerator.device)
        self.standard = measure_standard(data, recipe.data)
        seed = recipe.run.seed
        seed_everything(seed, "weights")
        self.network, self.first_layers = self.build(recipe, data)
        self.weights = self.load_weights()
        self.initial_weights = hash_weights(self.network)
        if recipe.run.channels_last:
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.to(accelerator.device)
        if not resumed:
            first = read_start_images(data.train, recipe, self.standard, accelerator.device)
            start_layers(self.network, self.first_layers, recipe, first)
        self.trained_from = hash_weights(self.network)
        if recipe.optimizer.first_layer_frozen:
            freeze_layers(self.network, self.first_layers)
        self.average = None
        if recipe.run.ema:
            decay = get_ema_multi_avg_fn(recipe.run.ema)
            self.average = AveragedModel(self.network, multi_avg_fn=decay, use_buffers=True)
        reduce = partial(accelerator.reduce, reduction="sum")
        names, fields = self.first_layers, recipe.optimizer
        optimizers = make_optimizers(self.network, names, fields, recipe.tract, reduce)
        scale_groups(optimizers, self.network, fields, recipe.data.batch_size)
        images = self.read_training_images
        self.rule = make_gradient_rule(recipe, self.network, names, images, reduce)
        allow_unused_parameters(accelerator, self.network)
        self.model, *self.optimizers = accelerator.prepare(self.network, *optimizers)
        self.stepper = Stepper(accelerator, self.network, self.optimizers)
        if recipe.run.compile:
            self.model.compile()
        self.batches = self.open_batches()
        self._check_shares()
        self.lookahead = None
        if recipe.optimizer.lookahead_steps:
            steps = recipe.schedule.epochs * self.batches.steps
            self.lookahead = Lookahead(self.network, recipe.optimizer, steps)
        self.first_parameters = find_first_parameters(self.network, self.first_layers)
        self._check_biases()
        self.trained = [p for p in self.network.parameters() if p.requires_grad]
        seed_everything(seed, "training", self.place.rank)

    @staticmethod
    def build(recipe: Recipe, data: Any) -> tuple[nn.Module, list[str]]:
        """Return the network, with TrAct if it is enabled, and the names of its first layers."""
        return build_recipe_model(recipe, data)

    def load_weights(self) -> LoadedWeights | None:
        """Load the recipe's file of initial weights, if it has one, and return what was loaded."""
        return load_initial_weights(self.recipe, self.network)

    def open_batches(self) -> Batches:
        """Return the training batches and set ``evaluation``, the test batches."""
        data, fields = self.data, self.recipe.data
        self.evaluation = EvaluationBatches(data.test, fields, self.standard, self.place)
        seed, classes = self.recipe.run.seed, len(data.classes)
        return Batches(data.train, fields, self.standard, seed, self.place, classes)

    def read_training_images(self) -> Iterator[Tensor]:
        """Yield this rank's training images in batches, without augmentation."""
        data, fields = self.data, self.recipe.data
        for share in EvaluationBatches(data.train, fields, self.standard, self.place).read():
            yield share.images

    def find_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0 over the whole run."""
        return rate_at(self.recipe.schedule, self.recipe.optimizer.lr, step, self.batches.steps)

    def take_step(self, share: Any, count: int, step: int) -> Tensor:
        """Train on this rank's share of a batch of ``count`` images, after ``step`` steps.

        Returns what the step adds to the totals of its epoch, [6]; see `progress.TOTALS`.
        """
        set_rate(self.optimizers, self.find_rate(step))
        self.stepper.begin()
        micro_batches = self.recipe.run.accumulation
        divisor = 1 if self.recipe.optimizer.reduction == "sum" else count
        loss = torch.zeros((), device=self.place.device)
        correct = torch.zeros((), device=self.place.device)
        with self._pool_moments():
            for number, part in enumerate(self.split(share), 1):
                is_last = number == micro_batches  # only then do ranks exchange gradients
                with nullcontext() if is_last else self.accelerator.no_sync(self.model):
                    part_loss, part_correct = self.measure(part)
                    self.accelerator.backward(part_loss / divisor * self.place.ranks)
                loss += part_loss.detach()
                correct += part_correct
        self._drop_frozen_biases(step)
        first, whole = self._finish_gradients()
        stepped = self.stepper.finish(whole)
        if self.lookahead is not None:
            self.lookahead.update(step + 1)
        if self.average is not None and stepped:
            self.average.update_parameters(self.network)
        seen = torch.tensor(len(share.images), device=self.place.device)
        sums = torch.stack([loss, correct, seen])
        if self.accelerator.scaler is not None:
            sums = torch.where(loss.isfinite(), sums, 0)  # an overflow; the step was skipped
        norms = torch.stack([first, whole, torch.ones_like(whole)])
        norms = torch.where(whole.isfinite(), norms, 0) / self.place.ranks  # totals sum over ranks
        return torch.cat([sums, norms])

    def split(self, share: Any) -> list[Any]:
        """Return the micro-batches of a share."""
        micro_batches = self.recipe.run.accumulation
        columns = (column.tensor_split(micro_batches) for column in share)
        return list(map(type(share), *columns))

    def measure(self, part: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of a micro-batch, summed over its images, and how many are correct."""
        images = part.images
        if self.recipe.run.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        logits = self.model(images).float()
        main = part.labels if part.labels.ndim == 1 else part.labels.argmax(1)
        correct = (logits.detach().argmax(1) == main).sum()
        return sum_losses(logits, part.labels, self.recipe.optimizer), correct

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the network, and of its average, on the test images."""
        tested = self._test(self.network)
        if self.average is not None:
            tested["ema_correct"] = self._test(self.average.module)["test_correct"]
        return tested

    def evaluate_views(self) -> dict[str, float]:
        """Return how many test images are correct with test-time views, if the recipe has them."""
        if not self.recipe.data.test_views:
            return {}
        return {"views_correct": self._test(ViewAverage(self.network))["test_correct"]}

    def _test(self, network: nn.Module) -> dict[str, float]:
        return evaluate_classifier(network, self.evaluation.read(), self.accelerator)

    def _drop_frozen_biases(self, step: int) -> None:
        """Leave the bias of a frozen first layer as it is after its epochs of training."""
        fields = self.recipe.optimizer
        epochs = fields.first_layer_bias_epochs if fields.first_layer_frozen else 0
        if epochs and step >= epochs * self.batches.steps:
            for bias in self.first_parameters:  # the weight does not require a gradient
                bias.grad = None

    def _finish_gradients(self) -> tuple[Tensor, Tensor]:
        """Return the norms of the first layer's and the whole gradient, and then clip it.

        The first layer's rule is applied before, so that the norms are those of what is stepped.
        """
        self.accelerator.unscale_gradients()
        if self.rule is not None:
            self.rule.apply()
        whole = get_total_norm([p.grad for p in self.trained if p.grad is not None])
        first = get_total_norm([p.grad for p in self.first_parameters if p.grad is not None])
        first = first.to(whole.device)  # a frozen layer without bias has no gradient
        if self.recipe.optimizer.clip_norm:
            clip_grads_with_norm_(self.trained, self.recipe.optimizer.clip_norm, whole)
        return first, whole

    def _pool_moments(self) -> AbstractContextManager[None]:
        """Return a context in which TrAct uses the second moment of all micro-batches."""
        if self.recipe.run.accumulation > 1 and self.recipe.tract.enabled:
            return accumulate(self.model)
        return nullcontext()

    def _check_shares(self) -> None:
        if self.batches.smallest_share < self.recipe.run.accumulation:
            smallest, whole = self.batches.smallest, self.recipe.data.batch_size
            raise TrActValueError(
                f"{'a' if smallest == whole else 'the last'} batch has {smallest} images for "
                f"{self.place.ranks} ranks with {self.recipe.run.accumulation} micro-batches each; "
                + ("set " if smallest == whole else "set data.drop_last=true or ")
                + "another data.batch_size"
                + (": mixup and cutmix need two images each." if self.batches.mixes else ".")
            )

    def _check_biases(self) -> None:
        fields = self.recipe.optimizer
        has_epochs = fields.first_layer_frozen and fields.first_layer_bias_epochs
        if has_epochs and not self.first_parameters:
            raise TrActValueError(
                f"optimizer.first_layer_bias_epochs is {fields.first_layer_bias_epochs}, but the "
                f"first layer ({', '.join(self.first_layers)}) has no bias to train; set it to 0."
            )

    def state(self) -> dict[str, Any]:
        """Return the part of a checkpoint that `load` reads; every rank must call this."""
        states, moments = [capture_states()], [tract_state(self.network)]
        if self.place.ranks > 1:
            states, moments = gather_object(states), gather_object(moments)
        scaler = self.accelerator.scaler
        return {
            "network": self.network.state_dict(),
            "tract": moments,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rule": None if self.rule is None else self.rule.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "lookahead": None if self.lookahead is None else self.lookahead.state(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "randomness": states,
            "fingerprint": self.data.fingerprint,
            "initial_weights": self.initial_weights,
            "trained_from": self.trained_from,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; every rank has the same ``state``.

        Raises:
            TrActError: the data or the file of initial weights have changed; nothing is loaded.
        """
        check_data(self.data, state["fingerprint"])
        arguments = self.recipe.model.arguments
        from_file = bool(self.recipe.model.weights or arguments.get("weights"))
        if from_file and state["initial_weights"] != self.initial_weights:
            raise TrActValueError(
                "the file of initial weights does not hold the weights that this run started with; "
                "restore the old file, or choose another --out to start again."
            )
        self.network.load_state_dict(state["network"])
        moments = state.get("tract", [{}])
        load_tract_state(self.network, moments[min(self.place.rank, len(moments) - 1)])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if self.rule is not None:
            self.rule.load_state_dict(state["rule"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.lookahead is not None:
            self.lookahead.load(state["lookahead"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.initial_weights = state["initial_weights"]
        self.trained_from = state.get("trained_from", self.initial_weights)
        if len(state["randomness"]) == self.place.ranks:
            restore_states(state["randomness"][self.place.rank])


def sum_losses(logits: Tensor, labels: Tensor, fields: OptimizerFields) -> Tensor:
    """Return the training loss of logits [N, classes], summed over images.

    Labels are int64 [N], or for mixed images the share of each class, [N, classes]. The binary loss
    replaces every share above 0 by 1, as DeiT-III does. Label smoothing takes its share ε from the
    label and gives ε/K to each of the K classes, or ε/(K-1) to each of the others.
    """
    if fields.loss == "binary":
        if labels.ndim == 1:
            labels = F.one_hot(labels, logits.shape[1])
        present = (labels > 0).float()
        return F.binary_cross_entropy_with_logits(logits, present, reduction="none").mean(1).sum()
    smoothing = fields.label_smoothing
    if fields.smoothing_over == "others":
        classes = logits.shape[1]
        smoothing *= classes / max(classes - 1, 1)  # over all classes: the label gets its part back
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


@torch.no_grad()
def evaluate_classifier(
    network: nn.Module, batches: Iterable[Share], accelerator: Accelerator
) -> dict[str, float]:
    """Return the mean test loss and how many images are seen, correct, and correct in the top 5.

    Every rank first receives the buffers of rank 0, such as the statistics of batch norm.
    """
    if accelerator.num_processes > 1:
        for buffer in network.buffers():
            buffer.copy_(broadcast(buffer, from_process=0))
    was_training = network.training
    network.eval()
    device = accelerator.device
    totals = torch.zeros(4, dtype=find_exact_dtype(device), device=device)
    with accelerator.autocast():
        for images, labels in batches:
            logits = network(images).float()
            loss = F.cross_entropy(logits, labels, reduction="sum")
            seen = torch.tensor(len(labels), device=device)
            totals += torch.stack([loss, *count_correct(logits, labels), seen])
    network.train(was_training)
    loss_sum, correct, top5, count = sum_over_ranks(accelerator, totals)
    return {
        "test_loss": loss_sum / count,
        "test_correct": int(correct),
        "test_top5": int(top5),
        "test_seen": int(count),
    }


def count_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many images have their label in the top 1 and in the top 5.

    >>> logits = torch.tensor([[0.1, 0.9, 0.0, 0.2, 0.3, 0.4]]).expand(2, -1)
    >>> [int(count) for count in count_correct(logits, torch.tensor([1, 2]))]
    [1, 1]
    """
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return best[:, 0].sum(), best.sum()
