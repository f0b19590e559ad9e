"""Measured values beside those that the paper prints, and its claims held against them."""

from trainact.lab.analysis.answers import Answers, answer
from trainact.lab.analysis.studies import Study
from trainact.lab.paper import Key, PrintedValue, find_places, find_printed, list_recipes
from trainact.lab.paper.claims import ClaimResult, check_claims, read_claim
from trainact.lab.paper.faithful import describe_deviations, find_faithful
from trainact.lab.paper.measured import measure_values
from trainact.lab.paper.values import Values
from trainact.lab.recipes.arms import BASELINE, name_arm
from trainact.lab.report.chapters import Chapter
from trainact.lab.report.tables import Grid
from trainact.lab.report.wording import show_difference, show_number

__all__ = ["compare_with_paper", "judge_claims", "measure_study"]

TABLE = "cifar100-table"
METRICS = {
    "top1": "top-1, %",
    "top5": "top-5, %",
    "map": "mean average precision",
    "seconds": "seconds of training",
    "minutes": "minutes of training",
}
VERDICTS = {True: "borne out", False: "not borne out", None: "open"}


def measure_study(study: Study) -> Values:
    """Return what the full runs of a study that are its recipe's come to, by the paper's keys."""
    records = find_faithful(study.name, study.records)
    return measure_values(study.name, records, _name_network(study))


def compare_with_paper(study: Study, answers: Answers) -> Chapter | None:
    """Return the printed values beside the measured ones; None for an experiment of our own."""
    if study.name not in list_recipes() or answers.kind == "smoke":
        return None
    grid = _make_grid(study, answers)
    places = "; ".join(find_places(study.name))
    deviating = describe_deviations(study.name, study.records)
    left_out = (deviating,) if deviating else ()
    if not grid.rows:
        told = f"The paper shows this in {places}, and prints no number of it."
        return Chapter("Beside the paper", sentences=(told, *left_out))
    note = (
        "Where the paper prints a mean over seeds, its deviation follows after ±; the hardware of "
        "its times is another. A dash stands where a seed diverged, where no run here is the "
        "recipe's, where nothing is printed, and for differences here of anything but top-1."
    )
    sentences = (f"Printed in {places}.", *left_out)
    return Chapter("Beside the paper", sentences=sentences, grids=(grid,), notes=(note,))


def judge_claims(values: Values) -> Chapter:
    """Return what the measured values say about the claims of the paper's text."""
    results = check_claims(values) if values else []
    told = [result for result in results if result.computed is not None]
    untold = len(results) - len(told)
    grid = Grid(
        "Claims of the paper's text, on the runs of this report",
        ("claim", "section", "stated", "here", "verdict", "besides"),
        tuple(map(_show_claim, told)),
        words=2,
    )
    rest = f"{untold} of its {len(results)} claims take runs that are not here."
    if not values:
        rest = "No run here is of an experiment of the paper."
    return Chapter(
        "The paper's claims",
        sentences=(rest,) if untold or not values else (),
        grids=(grid,) if told else (),
        notes=(
            "A claim is borne out if the measured means are as the text says, whatever their "
            "intervals; it is open where some of the runs that it takes are missing.",
        )
        if told
        else (),
    )


def _show_claim(result: ClaimResult) -> tuple[str, ...]:
    claim = read_claim(result.name)
    return (
        claim.says,
        claim.section,
        result.stated,
        result.computed or "-",
        VERDICTS[result.holds],
        result.detail or "-",
    )


def _make_grid(study: Study, answers: Answers) -> Grid:
    faithful = answer(find_faithful(study.name, study.records), jobs=0)
    differences = {(d.arm, d.budget): d for d in faithful.differences}
    complete = {(s.arm, s.budget): s.n for s in faithful.summaries}
    measured, network = measure_study(study), _name_network(study)
    rows = []
    for summary in sorted(answers.summaries, key=lambda s: s.budget):
        for metric, title in METRICS.items():
            printed = find_printed(study.name, network, summary.arm, summary.budget, metric)
            if printed is None:
                continue
            key = Key(study.name, network, summary.arm, summary.budget, metric)
            difference = differences.get((summary.arm, summary.budget))
            plain = find_printed(study.name, network, BASELINE, summary.budget, metric)
            rows.append(
                (
                    name_arm(summary.arm),
                    str(summary.budget),
                    title,
                    _show_measured(measured, key),
                    str(complete.get((summary.arm, summary.budget), 0)),
                    show_difference(difference) if metric == "top1" else "-",
                    printed.show(),
                    "-" if summary.arm == BASELINE else _show_printed_difference(printed, plain),
                )
            )
    head = ("arm", "epochs", "what", "here", "n", "here: difference to plain [95 %]")
    caption = "Mean ± standard deviation here and in the paper"
    return Grid(caption, (*head, "paper", "paper: difference"), tuple(rows))


def _name_network(study: Study) -> str | None:
    """Return which network of the paper's table of networks the runs are of."""
    if study.name != TABLE or not study.records:
        return None
    return (study.network or str(study.records[0]["model"]["name"])).removeprefix("lab:")


def _show_measured(values: Values, key: Key) -> str:
    if key not in values:
        return "-"
    mean, deviation = values[key].mean, values[key].deviation
    return show_number(mean) + ("" if deviation is None else f" ± {show_number(deviation)}")


def _show_printed_difference(one: PrintedValue, other: PrintedValue | None) -> str:
    if other is None:
        return "-"
    return show_number(one.mean - other.mean, max(one.decimals, other.decimals), sign=True)
