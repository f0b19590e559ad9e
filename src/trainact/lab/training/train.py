"""The one training loop: from a recipe to a record, interrupted as often as it may be."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from trainact.errors import TrActError
from trainact.lab.data import load_data
from trainact.lab.metric import read_percent
from trainact.lab.recipes.recipe import Recipe, recipe_to_dict
from trainact.lab.records.checkpoint import load_checkpoint, remove_checkpoints
from trainact.lab.records.events import Event, EventHandler
from trainact.lab.records.failures import clear_failure
from trainact.lab.records.record import RunFolder
from trainact.lab.training.ending import make_record, save_weights
from trainact.lab.training.inputs import check_inputs
from trainact.lab.training.machine import start_machine, start_tracker, sum_over_ranks
from trainact.lab.training.saving import Saver
from trainact.lab.training.session import TOTALS
from trainact.lab.training.tasks import find_session

__all__ = ["train"]

LOOK_EVERY = 20
"""Steps between two looks at the loss and the clock."""


class DivergedError(TrActError):
    """The loss is no longer a number."""


def train(
    recipe: Recipe, root: Path, report: EventHandler, load: Callable[..., Any] = load_data
) -> dict[str, Any]:
    """Do the run of a recipe below ``root``, or what is left of it; return its record.

    A run that has ended is not done again. One that was interrupted goes on from its last
    checkpoint and ends with the numbers that it would have had. Under torchrun every rank calls
    this.

    Args:
        recipe: the run.
        root: folder of all runs.
        report: is told what happens.
        load: makes the data set from the recipe's data table.

    Returns:
        The record; its ``status`` is ``diverged`` where the loss became NaN.

    Raises:
        TrActError: bad input, or other data or weights than the run began with, or a full disk;
            what was done is kept.
    """
    folder = RunFolder(root, recipe)
    accelerator = start_machine(recipe.run, folder.path)
    if not accelerator.is_main_process:
        report = _ignore

    def note(text: str) -> None:
        report(Event("note", text=text))

    ranks, run = accelerator.num_processes, None
    with folder.hold(note, ranks) if accelerator.is_main_process else contextlib.nullcontext():
        record = folder.load_record(note) if accelerator.is_main_process else None
        if record is not None:
            check_inputs(record, recipe, load)
        if ranks > 1:
            [record] = broadcast_object_list([record])
        if record is None:
            if accelerator.is_main_process:
                folder.prepare()
            run = _Run(recipe, folder, accelerator, report, load(recipe.data))
            record = run.complete(note)
    if accelerator.is_main_process:
        clear_failure(folder.path)
    report(Event("end", record=record))
    if run is not None:
        run.saver.stop_if_told()
    return record


class _Run:
    """A run that this process, or this process among others, carries to its end."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        accelerator: Accelerator,
        report: EventHandler,
        data: Any,
    ) -> None:
        self.recipe, self.folder, self.accelerator = recipe, folder, accelerator
        self.report, self.data = report, data
        self.session = find_session(data)(recipe, data, accelerator)
        if self.session.weights is not None:
            report(Event("note", text=self.session.weights.describe()))
        self.saver = Saver(self.session, folder.path)
        start_tracker(accelerator, recipe.run, {"recipe": str(recipe_to_dict(recipe))})

    def complete(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Go on from the last checkpoint to the end, and write the record.

        Raises:
            RunInterrupted: Ctrl-C or SIGTERM came; the run is saved.
        """
        with self.saver.heed_signals():
            return self._complete(note)

    def _complete(self, note: Callable[[str], None]) -> dict[str, Any]:
        session, main = self.session, self.accelerator.is_main_process
        session.load(load_checkpoint(self.folder.path, note) if main else None)
        if session.epoch or session.step:
            note(f"resumed in epoch {session.epoch + 1}, after {session.step} steps of it")
        failure = None
        try:
            while session.epoch < self.recipe.schedule.epochs:
                self._train_epoch()
        except DivergedError as error:
            failure = str(error)
        for tracker in self.accelerator.trackers:
            tracker.finish()
        record = make_record(session, failure)
        if main:
            if failure is None and self.recipe.run.keep_weights:
                save_weights(session.network, self.folder.weights_path)
                if session.average is not None:
                    save_weights(session.average.module, self.folder.path / "ema.safetensors")
            self.folder.write_record(record)
            remove_checkpoints(self.folder.path)
        self.accelerator.wait_for_everyone()
        return record

    def _train_epoch(self) -> None:
        session = self.session
        session.network.train()
        before, started = session.seconds, time.perf_counter()
        for share, count in session.batches.read(session.epoch, session.step):
            session.take_step(share, count)
            session.seconds = before + time.perf_counter() - started
            if session.step % LOOK_EVERY == 0:
                started += self._look()
            else:
                self.saver.save_if_told_to_stop()
        self.saver.save_in_time()  # a test may last longer than a signal's sender waits
        self._finish_epoch()
        if session.epoch < self.recipe.schedule.epochs:
            self.saver.save_in_time()

    def _look(self) -> float:
        """Check the loss, save where it is time, and tell how far the run is.

        Returns:
            Seconds of saving, which are no seconds of training.
        """
        sums = self._read_totals()
        seconds = self.saver.save_in_time()
        self.report(
            Event(
                "step",
                epoch=self.session.epoch,
                epochs=self.recipe.schedule.epochs,
                part=self.session.step / self.session.batches.steps,
                loss=sums["loss"] / sums["seen"],
            )
        )
        return seconds

    def _read_totals(self) -> dict[str, float]:
        """Return the epoch's sums over all ranks.

        Raises:
            DivergedError: the loss is NaN or infinite, with fp16 in every step so far; every rank
                raises it.
        """
        session = self.session
        values = sum_over_ranks(self.accelerator, session.totals)
        sums = dict(zip(TOTALS, values, strict=True))
        where = f"in epoch {session.epoch + 1}, at or before step {session.step}"
        if not sums["seen"]:  # with fp16, which leaves single overflows out
            raise DivergedError(
                f"no loss was finite {where}; take a smaller optimizer.lr, or run.precision=bf16."
            )
        if not abs(sums["loss"]) < float("inf"):
            raise DivergedError(
                f"the loss became {sums['loss']} {where}; take a smaller optimizer.lr."
            )
        return sums

    def _finish_epoch(self) -> None:
        session = self.session
        sums = self._read_totals()
        steps = sums["finite_steps"]
        norms = {
            name: sums[name] / steps if steps else None
            for name in ("first_layer_grad_norm", "grad_norm")
        }
        started = time.perf_counter()
        tested = session.evaluate()
        session.order = session.batches.hash_order(session.epoch, session.order)
        metrics: dict[str, Any] = {
            "epoch": session.epoch + 1,
            "train_loss": sums["loss"] / sums["seen"],
            **{f"train_{name}": int(sums[name]) for name in session.counts},
            **tested,
            **norms,
            "lr": session.rate_at_start,
            "train_seconds": session.seconds,
            "test_seconds": time.perf_counter() - started,
        }
        session.history.append(metrics)
        session.epoch, session.step, session.seconds = session.epoch + 1, 0, 0.0
        session.clear_totals()
        self.accelerator.log(metrics, step=session.epoch)
        self.report(
            Event(
                "epoch",
                epoch=session.epoch,
                epochs=self.recipe.schedule.epochs,
                loss=metrics["train_loss"],
                accuracy=read_percent(session.metric, tested),
                metric=session.metric.name,
                seconds=metrics["train_seconds"] + metrics["test_seconds"],
            )
        )


def _ignore(event: Event) -> None:
    del event
