"""apply_tract before training with Lightning, Hugging Face's Trainer, Accelerate and a plain loop."""

import copy
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cases import assert_close
from slow_cases import mark_slow
from trainact import TrActLayer, TrActValueError, accumulate, apply_tract
from trainact.lab.torchvision_import import import_torchvision
from trainact.reference import tract_gradient_of_layer

import_torchvision()  # before the trainers do

import lightning  # noqa: E402
import transformers  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from trainact.integrations import huggingface  # noqa: E402
from trainact.integrations import lightning as for_lightning  # noqa: E402

LAM, RATE, SIZE = 0.1, 0.1, 4
"""λ, the learning rate, and the images in a micro-batch."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*smaller than the logging"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Network(nn.Module):
    """A small network with the output that Hugging Face's Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 5, 3, stride=2)
        self.head = nn.Linear(45, 3)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.stem(images).relu().flatten(1))
        return logits if labels is None else {"loss": F.cross_entropy(logits, labels)}


@dataclass
class Run:
    """One training: micro-batches of SIZE images in order, ``per_step`` of them to a step."""

    model: Network
    folder: Path
    images: Tensor = field(default_factory=lambda: torch.randn(16, 3, 8, 8).double() + 0.5)
    labels: Tensor = field(default_factory=lambda: torch.arange(16) % 3)
    steps: int = 1
    per_step: int = 1
    whole_batch: bool = False
    clip: float = 0.0
    resume_after: int | None = None
    """Stop after this many steps, save, load everything again and continue."""

    @property
    def micro_batches(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.images.split(SIZE), self.labels.split(SIZE), strict=True))

    def windows(self) -> list[list[tuple[Tensor, Tensor]]]:
        batches = itertools.cycle(self.micro_batches)
        return [[next(batches) for _ in range(self.per_step)] for _ in range(self.steps)]

    def loader(self) -> DataLoader:
        return DataLoader(TensorDataset(self.images, self.labels), SIZE)

    def new_model(self) -> Network:
        model = Network().double()
        apply_tract(model, LAM, example_input=self.images)
        return model


def train_plainly(run: Run) -> Network:
    model = run.model
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for step, window in enumerate(run.windows()):
        if step == run.resume_after:
            file = run.folder / "checkpoint.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            saved, model = torch.load(file), run.new_model()
            optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        optimizer.zero_grad()
        if run.whole_batch:
            with accumulate(model):
                backpropagate(model, window)
        else:
            backpropagate(model, window)
        if run.clip:
            nn.utils.clip_grad_norm_(model.parameters(), run.clip)
        optimizer.step()
    return model


def backpropagate(model: nn.Module, window: list[tuple[Tensor, Tensor]]) -> None:
    for images, labels in window:
        (model(images, labels)["loss"] / len(window)).backward()


def train_with_accelerate(run: Run) -> Network:
    model = run.model
    accelerator, prepared, optimizer = prepare(run, model)
    for step, window in enumerate(run.windows()):
        if step == run.resume_after:
            accelerator.save_state(run.folder / "state")
            model = run.new_model()
            accelerator, prepared, optimizer = prepare(run, model)
            accelerator.load_state(run.folder / "state")
        if run.whole_batch:
            with accumulate(prepared):
                for images, labels in window:
                    with accelerator.accumulate(prepared):
                        accelerator.backward(prepared(images, labels)["loss"])
            if run.clip:
                accelerator.clip_grad_norm_(prepared.parameters(), run.clip)
            optimizer.step()
            optimizer.zero_grad()
            continue
        for images, labels in window:
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(images, labels)["loss"])
                if run.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), run.clip)
                optimizer.step()
                optimizer.zero_grad()
    return model


def prepare(run: Run, model: Network) -> tuple[Accelerator, Any, Any]:
    forget_accelerate()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=run.per_step)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    return accelerator, *accelerator.prepare(model, optimizer)


def forget_accelerate() -> None:
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class LightningNetwork(lightning.LightningModule):
    def __init__(self, model: Network) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.model(*batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), RATE, momentum=0.9)


def make_lightning_trainer(run: Run, *callbacks: Any, **limit: int) -> lightning.Trainer:
    own = [for_lightning.TrActAccumulation()] if run.whole_batch else []
    return lightning.Trainer(
        accelerator="cpu",
        **limit,
        accumulate_grad_batches=run.per_step,
        gradient_clip_val=run.clip or None,
        callbacks=[*own, *callbacks],
        default_root_dir=run.folder,
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def keep_checkpoints(run: Run) -> ModelCheckpoint:
    return ModelCheckpoint(run.folder, save_last=True, save_on_train_epoch_end=True)


def train_with_lightning(run: Run) -> Network:
    module = LightningNetwork(run.model)
    if run.resume_after is None:
        make_lightning_trainer(run, max_steps=run.steps).fit(module, run.loader())
        return module.model
    trainer = make_lightning_trainer(
        run, keep_checkpoints(run), max_epochs=1
    )  # it resumes between epochs
    trainer.fit(module, run.loader())
    assert trainer.global_step == run.resume_after
    module = LightningNetwork(run.new_model())
    epochs = run.steps * run.per_step // len(run.micro_batches)
    trainer = make_lightning_trainer(run, keep_checkpoints(run), max_epochs=epochs)
    trainer.fit(module, run.loader(), ckpt_path=run.folder / "last.ckpt", weights_only=False)
    return module.model


def make_hf_trainer(run: Run, model: Network, *callbacks: Any) -> transformers.Trainer:
    forget_accelerate()
    own = [huggingface.TrActAccumulation()] if run.whole_batch else []
    arguments = transformers.TrainingArguments(
        output_dir=str(run.folder),
        max_steps=run.steps,
        per_device_train_batch_size=SIZE,
        gradient_accumulation_steps=run.per_step,
        max_grad_norm=run.clip,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        save_strategy="steps" if run.resume_after else "no",
        save_steps=run.resume_after or 500,
        train_sampling_strategy="sequential",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    data = [{"images": x, "labels": y} for x, y in zip(run.images, run.labels, strict=True)]
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    return transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        optimizers=(optimizer, None),
        callbacks=[*own, *callbacks],
    )


def train_with_hugging_face(run: Run) -> Network:
    make_hf_trainer(run, run.model).train()
    if run.resume_after is None:
        return run.model
    model = run.new_model()
    checkpoint = run.folder / f"checkpoint-{run.resume_after}"
    make_hf_trainer(run, model).train(resume_from_checkpoint=str(checkpoint))
    return model


TRAINERS = {
    "plain": train_plainly,
    "accelerate": train_with_accelerate,
    "lightning": train_with_lightning,
    "hugging-face": train_with_hugging_face,
}
every_trainer = pytest.mark.parametrize("train", TRAINERS.values(), ids=TRAINERS)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    model = Network().double()
    assert apply_tract(model, LAM, example_input=torch.zeros(1, 3, 8, 8)) == [
        "stem"
    ]  # the one line
    return Run(model, tmp_path)


def expect_stem_after_one_step(run: Run, groups: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the stem's weight after one SGD step with each group preconditioned by itself."""
    model, total = copy.deepcopy(run.model), 0
    for images, labels in groups:
        z = model.stem(images).detach().requires_grad_()
        loss = F.cross_entropy(model.head(z.relu().flatten(1)), labels) / len(groups)
        (grad_z,) = torch.autograd.grad(loss, z)
        total = total + tract_gradient_of_layer(model.stem, images, grad_z, LAM)
    return model.stem.weight.detach() - RATE * total


@every_trainer
def test_the_one_line_gives_the_papers_step(train, run):
    expected = expect_stem_after_one_step(run, run.micro_batches[:1])
    assert_close(train(run).stem.weight.detach(), expected)


@every_trainer
def test_by_default_each_micro_batch_is_preconditioned_with_its_own_rows(train, run):
    run.per_step = 2
    expected = expect_stem_after_one_step(run, run.micro_batches[:2])
    assert_close(train(run).stem.weight.detach(), expected)


@every_trainer
def test_a_step_can_use_the_second_moment_of_the_whole_batch(train, run):
    run.per_step, run.whole_batch = 2, True
    expected = expect_stem_after_one_step(run, [(run.images[: 2 * SIZE], run.labels[: 2 * SIZE])])
    assert_close(train(run).stem.weight.detach(), expected)


@pytest.mark.parametrize(
    "clip", mark_slow([1e-3, 0.0, 0.3]), ids=["clipped", "unclipped", "hardly-clipped"]
)
@pytest.mark.parametrize("whole_batch", [False, True], ids=["each", "whole"])
@pytest.mark.parametrize("train", list(TRAINERS.values())[1:], ids=list(TRAINERS)[1:])
def test_several_steps_equal_those_of_a_plain_loop(train, run, clip, whole_batch):
    run.steps, run.per_step, run.clip, run.whole_batch = 3, 2, clip, whole_batch
    expected = train_plainly(Run(copy.deepcopy(run.model), run.folder, **{
        key: getattr(run, key) for key in ("images", "labels", "steps", "per_step", "clip", "whole_batch")
    }))  # fmt: skip
    trained = train(run)
    for name, weight in trained.state_dict().items():
        assert_close(weight, expected.state_dict()[name])


@every_trainer
def test_several_steps_with_a_trained_bias_equal_those_of_whole_batches(train, run):
    """``center=True`` changes the gradient of the bias too, which must not outlive its step."""
    run.steps, run.per_step, run.whole_batch = 2, 2, True
    run.model = Network().double()
    apply_tract(run.model, LAM, layers="stem", center=True)
    expected = copy.deepcopy(run.model)
    optimizer = torch.optim.SGD(expected.parameters(), RATE, momentum=0.9)
    for images, labels in zip(run.images.split(2 * SIZE), run.labels.split(2 * SIZE), strict=True):
        optimizer.zero_grad()
        expected(images, labels)["loss"].backward()
        optimizer.step()
    trained = train(run).state_dict()
    for name, weight in expected.state_dict().items():
        assert_close(trained[name], weight)


@pytest.mark.slow
@pytest.mark.parametrize("whole_batch", [False, True], ids=["each", "whole"])
@every_trainer
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(train, run, whole_batch):
    run.steps, run.per_step, run.whole_batch = 4, 2, whole_batch
    other = copy.copy(run)
    other.model, other.folder = copy.deepcopy(run.model), run.folder / "other"
    other.folder.mkdir()
    other.resume_after = 2
    expected, resumed = train(run), train(other)
    assert resumed is not other.model
    for name, weight in resumed.state_dict().items():
        assert torch.equal(weight, expected.state_dict()[name]), name


def is_inside_accumulate(model: nn.Module) -> bool:
    return any(m.memory.pool is not None for m in model.modules() if isinstance(m, TrActLayer))


class ForwardError(Exception):
    pass


class FailingNetwork(Network):
    """Fails on its fourth micro-batch, the second of a step's two."""

    calls = 0

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        self.calls += 1
        if self.calls == 4:
            assert is_inside_accumulate(self)
            raise ForwardError
        return super().forward(images, labels)


@pytest.fixture
def failing_run(tmp_path: Path) -> Run:
    model = FailingNetwork().double()
    apply_tract(model, LAM, layers="stem")
    return Run(model, tmp_path, steps=4, per_step=2, whole_batch=True, clip=1.0)


def test_an_exception_in_lightning_leaves_no_block_open(failing_run):
    with pytest.raises(ForwardError):
        train_with_lightning(failing_run)
    assert not is_inside_accumulate(failing_run.model)


@pytest.mark.slow
def test_an_exception_in_hugging_faces_trainer_is_cleaned_up_on_request_or_by_training_again(failing_run):  # fmt: skip
    trainer = make_hf_trainer(failing_run, failing_run.model)
    (callback,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, huggingface.TrActAccumulation)]  # fmt: skip
    with pytest.raises(ForwardError):
        trainer.train()
    assert is_inside_accumulate(failing_run.model)
    callback.abandon()
    assert not is_inside_accumulate(failing_run.model)
    assert trainer.args.max_grad_norm == 1.0
    failing_run.model.calls = 0
    with pytest.raises(ForwardError):
        trainer.train()
    trainer.train()
    assert not is_inside_accumulate(failing_run.model)
    assert trainer.args.max_grad_norm == 1.0


class StopInsideAStep(transformers.TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


def test_a_step_of_hugging_faces_trainer_that_is_never_finished_leaves_no_block_open(run):
    run.per_step, run.whole_batch = 2, True
    before = run.model.stem.weight.detach().clone()
    make_hf_trainer(run, run.model, StopInsideAStep()).train()
    assert not is_inside_accumulate(run.model)
    assert torch.equal(run.model.stem.weight, before)


class StopsTheEpochInsideAStep(transformers.TrainerCallback):
    substeps = 0

    def on_substep_end(self, args, state, control, **kwargs):
        self.substeps += 1
        control.should_epoch_stop = self.substeps == 1


def test_an_epoch_of_hugging_faces_trainer_that_stops_inside_a_step_leaves_it_to_the_next(run):
    run.steps, run.per_step, run.whole_batch = 4, 2, True  # two epochs
    expected = copy.deepcopy(run.model)
    make_hf_trainer(run, run.model, StopsTheEpochInsideAStep()).train()
    optimizer = torch.optim.SGD(expected.parameters(), RATE, momentum=0.9)
    batches = run.micro_batches
    for window in ([batches[0], *batches[:2]], batches[2:]):
        with accumulate(expected):
            for images, labels in window:
                (expected(images, labels)["loss"] / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in run.model.state_dict().items():
        assert_close(weight, expected.state_dict()[name])
    assert not is_inside_accumulate(run.model)


class DropsEveryOtherGradient(LightningNetwork):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


class AccumulatesByItself(DropsEveryOtherGradient):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if batch_idx % 2 == 0:
            optimizer.zero_grad()


class SkipsTheFirstEpoch(LightningNetwork):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if (self.current_epoch, batch_idx) == (0, 1) else None


@pytest.mark.parametrize(
    ("network", "per_step", "epochs"),
    [(DropsEveryOtherGradient, 1, 1), (SkipsTheFirstEpoch, 2, 2)],
)
def test_gradients_that_lightning_drops_leave_no_rows(run, network, per_step, epochs):
    run.per_step, run.whole_batch = per_step, True
    expected, module = copy.deepcopy(run.model), network(run.model)
    make_lightning_trainer(run, max_epochs=epochs).fit(module, run.loader())
    optimizer = torch.optim.SGD(expected.parameters(), RATE, momentum=0.9)
    batches = run.micro_batches
    for window in [batches[1:2], batches[3:]] if per_step == 1 else [batches[:2], batches[2:]]:
        optimizer.zero_grad()
        with accumulate(expected):
            backpropagate(expected, window)
        optimizer.step()
    for name, weight in run.model.state_dict().items():
        assert_close(weight, expected.state_dict()[name])


def test_gradients_that_the_module_keeps_keep_their_rows(run):
    run.whole_batch = True
    expected, module = copy.deepcopy(run.model), AccumulatesByItself(run.model)
    make_lightning_trainer(run, max_epochs=1).fit(module, run.loader())
    optimizer = torch.optim.SGD(expected.parameters(), RATE, momentum=0.9)
    for window in (run.micro_batches[:2], run.micro_batches[2:]):
        optimizer.zero_grad()
        with accumulate(expected):
            for images, labels in window:
                expected(images, labels)["loss"].backward()
        optimizer.step()
    for name, weight in run.model.state_dict().items():
        assert_close(weight, expected.state_dict()[name])


def test_the_last_step_of_an_epoch_may_have_fewer_micro_batches(run):
    run.steps, run.per_step, run.whole_batch = 4, 3, True
    module = LightningNetwork(run.model)
    make_lightning_trainer(run, max_steps=run.steps).fit(module, run.loader())
    assert not is_inside_accumulate(module)


@pytest.mark.parametrize("train", [train_with_lightning, train_with_hugging_face])
def test_a_lost_layer_is_an_error_before_training_starts(train, run):
    run.whole_batch = True
    run.model.stem = nn.Conv2d(3, 5, 3, stride=2).double()
    with pytest.raises(TrActValueError, match=r"gave '(model\.)?stem' TrAct's gradient"):
        train(run)


def test_manual_optimization_in_lightning_is_refused_with_advice(run):
    run.whole_batch = True
    module = LightningNetwork(run.model)
    module.automatic_optimization = False
    with pytest.raises(TrActValueError, match=r"'with trainact\.accumulate\(self\):'"):
        make_lightning_trainer(run, max_steps=1).fit(module, run.loader())
