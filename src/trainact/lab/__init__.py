"""The evidence: commands that measure, train and report; it imports the method, not vice versa.

`compare_runs` and `current_run` compare arms in a training loop of your own.
"""

from typing import TYPE_CHECKING

from trainact.lazy_names import make_getattr

if TYPE_CHECKING:
    from trainact.lab.comparisons import compare_runs
    from trainact.lab.training.own_loop.loop import current_run
    from trainact.lab.training.own_loop.run import Run

__all__ = ["Run", "compare_runs", "current_run"]

if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = make_getattr(
        __name__,
        {
            "comparisons": ["compare_runs"],
            "training.own_loop.loop": ["current_run"],
            "training.own_loop.run": ["Run"],
        },
    )
