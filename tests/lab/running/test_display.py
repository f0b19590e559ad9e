"""Progress on standard error: bars in a terminal, lines in logs and notebooks."""

import io
import re
import sys
import threading

from trainact.lab.records.events import Event
from trainact.lab.running.display import Bars, Display, Lines, choose_display

RUNS = [("plain, seed 0", 2), ("tract, seed 0", 2)]


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def open_screen(monkeypatch) -> Screen:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Screen())
    return sys.stderr


def do_run(display, name):
    """Report what a run of two epochs reports."""
    display.show(name, Event("note", text="[bold]asking[/bold]"))
    for epoch in range(2):
        display.show(name, Event("step", epoch=epoch, epochs=2, part=0.5, loss=1.25))
        display.show(
            name, Event("epoch", epoch=epoch + 1, epochs=2, loss=1.0, accuracy=50.0, seconds=3.0)
        )
    display.show(name, Event("end"))


def test_a_terminal_has_bars_and_anything_else_lines(monkeypatch):
    open_screen(monkeypatch)
    assert type(choose_display()) is Bars
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # a log, a pipe or a notebook
    assert type(choose_display()) is Lines
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert type(choose_display()) is Display


def test_bars_show_runs_side_by_side_and_go_when_they_end(monkeypatch):
    screen = open_screen(monkeypatch)
    display = Bars()
    with display.open(RUNS):
        threads = [threading.Thread(target=do_run, args=(display, name)) for name, _ in RUNS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert display.tasks == {}
        assert [task.description for task in display.bars.tasks] == ["2 runs"]
        assert display.bars.tasks[0].finished
    shown = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())  # without colours
    for name, _ in RUNS:
        assert f"{name}: [bold]asking[/bold]" in shown  # text is never markup


def test_a_bar_has_the_epoch_the_loss_and_the_accuracy(monkeypatch):
    open_screen(monkeypatch)
    display = Bars()
    with display.open(RUNS):
        event = Event("epoch", epoch=1, epochs=2, loss=1.25, accuracy=50.0)
        display.show("plain, seed 0", event)
        whole, run = display.bars.tasks
        assert run.fields["news"] == "epoch 1/2  loss 1.250  accuracy 50.00 %"
        assert (run.completed, run.total) == (1, 2)
        assert whole.completed == 0.25
        assert whole.fields["news"].endswith(" left")


def test_a_log_has_one_line_for_an_epoch_and_no_control_characters(capsys):
    display = Lines()
    with display.open(RUNS[:1]):
        do_run(display, "plain, seed 0")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "plain, seed 0: [bold]asking[/bold]"
    assert [line.split(" left")[0].rsplit(",", 1)[0] for line in lines[1:]] == [
        f"plain, seed 0: epoch {epoch}/2, loss 1.000, accuracy 50.00 %, 3.0 s" for epoch in (1, 2)
    ]
    assert "\x1b" not in "".join(lines)
