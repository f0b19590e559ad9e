"""The training loop: from a recipe to a record, with any number of interruptions."""

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn

from trainact.errors import TrActError
from trainact.lab.data import load_data
from trainact.lab.data.objects import DetectionData
from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically
from trainact.lab.metric import ACCURACY, read_percent
from trainact.lab.recipes.recipe import Recipe, identify, recipe_to_dict
from trainact.lab.records.checkpoint import remove_checkpoints
from trainact.lab.records.events import Event, EventHandler
from trainact.lab.records.record import FORMAT, RunFolder, clear_failure
from trainact.lab.training.machine import start_machine, sum_over_ranks
from trainact.lab.training.progress import TOTALS, Progress
from trainact.lab.training.resume_checks import check_record
from trainact.lab.training.saving import Saver, read_checkpoint
from trainact.lab.training.session import Session
from trainact.lab.training.trackers import start_tracker, stop_trackers, track

__all__ = ["find_session", "train"]

REPORT_EVERY = 20
"""Steps between two reports of the loss; a checkpoint is saved then, if it is due."""


class DivergedError(TrActError):
    """The loss is not finite."""


def find_session(data: Any) -> type[Session]:
    """Return the session class for a data set."""
    if isinstance(data, DetectionData):
        from trainact.lab.training.detection.session import DetectionSession  # needs torchvision

        return DetectionSession
    return Session


def train(
    recipe: Recipe, root: Path, report: EventHandler, load: Callable[..., Any] = load_data
) -> dict[str, Any]:
    """Do the run of a recipe, or the rest of it, and return its record.

    A finished run is not repeated. An interrupted run continues from its last checkpoint and gives
    the same numbers as without the interruption. Under torchrun every rank calls this. The status
    of the record is ``diverged`` if the loss became NaN or infinite.

    Args:
        recipe: the run.
        root: folder of all runs; the run has a folder below it.
        report: receives the events.
        load: loads the data set from the recipe's data table; ``note`` receives its messages.

    Raises:
        TrActError: invalid input, data or weights that have changed since the run started, or a
            full disk; checkpoints are kept.
    """
    folder = RunFolder(root, recipe)
    accelerator = start_machine(recipe.run, folder.path)
    if not accelerator.is_main_process:
        report = _ignore

    def note(text: str) -> None:
        report(Event("note", text=text))

    load = functools.partial(load, note=note)
    ranks, run = accelerator.num_processes, None
    with folder.hold(note, ranks) if accelerator.is_main_process else contextlib.nullcontext():
        record = folder.load_record(note) if accelerator.is_main_process else None
        if record is not None:
            check_record(record, recipe, load)
            lacks_weights = record["status"] == "complete" and not folder.weights_path.exists()
            if recipe.run.keep_weights and lacks_weights:
                note(f"finished without its weights; remove {folder.path} to train it again")
        if ranks > 1:
            [record] = broadcast_object_list([record])
        if record is None:
            if accelerator.is_main_process:
                folder.prepare()
            data, state = load(recipe.data), read_checkpoint(folder.path, accelerator, note)
            run = _Run(recipe, folder, accelerator, report, data, state)
            del state
            with run.saver.defer_signals(note):
                record = run.complete(note)
    if accelerator.is_main_process:
        clear_failure(folder.path)
    report(Event("end", record=record))
    if run is not None:
        run.saver.stop_if_interrupted()
    return record


class _Run:
    """The training loop of one run; owns its session and its progress."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        accelerator: Accelerator,
        report: EventHandler,
        data: Any,
        state: dict[str, Any] | None,
    ) -> None:
        self.recipe, self.folder, self.accelerator = recipe, folder, accelerator
        self.report = report
        environment = {
            **describe_environment(str(accelerator.device)),  # the code may change during the run
            "ranks": accelerator.num_processes,
        }
        self.session = find_session(data)(recipe, data, accelerator, state is not None)
        if self.session.weights is not None:
            report(Event("note", text=self.session.weights.describe()))
        self.progress = Progress(accelerator.device, environment)
        self.saver = Saver(self.session, self.progress, folder.path)
        if state is not None:
            self.saver.load(state)
        start_tracker(accelerator, recipe, folder.path)

    def complete(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Train from the last checkpoint to the end, write the record and return it.

        Raises:
            RunInterrupted: a signal came; the run is saved.
        """
        session, progress, failure = self.session, self.progress, None
        if progress.epoch or progress.step:
            note(f"resumed in epoch {progress.epoch + 1} after {progress.step} of its steps")
        try:
            while progress.epoch < self.recipe.schedule.epochs:
                self._train_epoch()
        except DivergedError as error:
            failure = str(error)
        finally:
            stop_trackers(self.accelerator)
        record = self._make_record(failure)
        if self.accelerator.is_main_process:
            if failure is None and self.recipe.run.keep_weights:
                _save_weights(session.network, self.folder.weights_path)
                if session.average is not None:
                    _save_weights(session.average.module, self.folder.path / "ema.safetensors")
            self.folder.write_record(record)
            remove_checkpoints(self.folder.path)
        self.accelerator.wait_for_everyone()
        return record

    def _train_epoch(self) -> None:
        session, progress = self.session, self.progress
        session.network.train()
        first = progress.epoch * session.batches.steps
        before, started = progress.seconds, time.perf_counter()
        for share, count in session.batches.read(progress.epoch, progress.step):
            measured = session.take_step(share, count, first + progress.step)
            progress.add_step(measured, before + time.perf_counter() - started)
            if progress.step % REPORT_EVERY == 0:
                started += self._report_step()
            else:
                self.saver.save_if_interrupted()
        self.saver.save_if_due()  # evaluation may take longer than a scheduler waits
        self._finish_epoch()
        if progress.epoch < self.recipe.schedule.epochs:
            self.saver.save_if_due()

    def _report_step(self) -> float:
        """Check the loss, save if it is due, and report the progress.

        Returns the seconds of saving, which do not count as training time.
        """
        sums, progress = self._sum_totals(), self.progress
        seconds = self.saver.save_if_due()
        epochs, part = self.recipe.schedule.epochs, progress.step / self.session.batches.steps
        loss = sums["loss"] / sums["seen"]
        self.report(Event("step", epoch=progress.epoch, epochs=epochs, part=part, loss=loss))
        return seconds

    def _sum_totals(self) -> dict[str, float]:
        """Return the epoch's totals, summed over all ranks.

        Raises:
            DivergedError: the loss is not finite, or with fp16 no step of the epoch had a finite
                loss; every rank raises it.
        """
        values = sum_over_ranks(self.accelerator, self.progress.totals)
        sums = dict(zip(TOTALS, values, strict=True))
        where = f"in epoch {self.progress.epoch + 1}, at or before step {self.progress.step}"
        if not sums["seen"]:  # fp16 leaves out steps that overflow
            raise DivergedError(
                f"no loss was finite {where}; use a smaller optimizer.lr, or run.precision=bf16."
            )
        if not abs(sums["loss"]) < float("inf"):
            raise DivergedError(
                f"the loss became {sums['loss']} {where}; use a smaller optimizer.lr."
            )
        return sums

    def _finish_epoch(self) -> None:
        session, progress = self.session, self.progress
        sums = self._sum_totals()
        steps = sums["finite_steps"]
        norms = {
            name: sums[name] / steps if steps else None
            for name in ("first_layer_grad_norm", "grad_norm")
        }
        started = time.perf_counter()
        tested = session.evaluate()
        if progress.epoch + 1 == self.recipe.schedule.epochs:
            tested |= session.evaluate_views()
        metrics: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "train_loss": sums["loss"] / sums["seen"],
            **{f"train_{name}": int(sums[name]) for name in session.counts},
            **tested,
            **norms,
            "lr": session.find_rate(progress.epoch * session.batches.steps),
            "train_seconds": progress.seconds,
            "test_seconds": time.perf_counter() - started,
        }
        order = session.batches.hash_order(progress.epoch, progress.order)
        progress.finish_epoch(metrics, order)
        track(self.accelerator, metrics, progress.epoch)
        self.report(
            Event(
                "epoch",
                epoch=progress.epoch,
                epochs=self.recipe.schedule.epochs,
                loss=metrics["train_loss"],
                accuracy=read_percent(session.metric, tested),
                metric=session.metric.name,
                seconds=metrics["train_seconds"] + metrics["test_seconds"],
            )
        )

    def _make_record(self, failure: str | None) -> dict[str, Any]:
        """Return the record; ``failure`` says why the run diverged, if it did."""
        recipe, session, progress = self.recipe, self.session, self.progress
        data = session.data
        metric = {} if session.metric == ACCURACY else {"metric": session.metric._asdict()}
        return {
            "format": FORMAT,
            "status": "complete" if failure is None else "diverged",
            "kind": "smoke" if recipe.run.smoke else "full",
            "arm": recipe.arm,
            "budget": recipe.schedule.epochs,
            "seed": recipe.run.seed,
            "recipe": recipe_to_dict(recipe),
            "recipe_id": identify(recipe),
            "environment": progress.environments[-1],
            "earlier_environments": progress.environments[:-1],
            "data": {
                "name": data.name,
                "fingerprint": data.fingerprint,
                "train_images": len(data.train),
                "test_images": len(data.test),
                "classes": len(data.classes),
                **({"difference": data.difference} if data.difference else {}),
                "mean": list(session.standard.mean),
                "std": list(session.standard.std),
            },
            "model": {
                "name": recipe.model.name,
                "parameters": sum(p.numel() for p in session.network.parameters()),
                "first_layers": session.first_layers,
                "initial_weights": session.initial_weights,
                "trained_from": session.trained_from,
                "weights": None if session.weights is None else asdict(session.weights),
            },
            "order": progress.order,
            **metric,
            "epochs": progress.history,
            "failure": failure,
            "seconds": sum(e["train_seconds"] + e["test_seconds"] for e in progress.history),
            "sessions": progress.sessions,
        }


def _save_weights(network: nn.Module, path: Path) -> None:
    """Write a network's state dict as safetensors."""
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in network.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    write_atomically(path, safetensors.torch.save(tensors))


def _ignore(event: Event) -> None:
    del event
