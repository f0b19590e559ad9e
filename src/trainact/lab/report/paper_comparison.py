"""Measured values next to the paper's, and its claims checked on them."""

from trainact.lab.analysis.answers import Answers, answer
from trainact.lab.analysis.studies import Study
from trainact.lab.paper import Key, PrintedValue, find_places, find_printed, list_recipes
from trainact.lab.paper.claims import ClaimResult, check_claims, read_claim
from trainact.lab.paper.faithful import describe_deviations, find_faithful
from trainact.lab.paper.measured import measure_values
from trainact.lab.paper.values import Values
from trainact.lab.recipes.arms import BASELINE, PLAIN
from trainact.lab.report.chapters import Chapter, ChapterId
from trainact.lab.report.grid import Grid
from trainact.lab.report.wording import format_difference, format_number

__all__ = ["compare_with_paper", "judge_claims", "measure_study"]

TABLE = "cifar100-table"
METRICS = {
    "top1": "top-1, %",
    "top5": "top-5, %",
    "map": "mean average precision",
    "seconds": "seconds of training",
    "minutes": "minutes of training",
}
VERDICTS = {True: "confirmed", False: "not confirmed", None: "undecided"}


def measure_study(study: Study) -> Values:
    """Return the means of a study's full runs that follow its recipe, by the paper's keys."""
    records = find_faithful(study.name, study.records)
    return measure_values(study.name, records, _name_network(study))


def compare_with_paper(study: Study, answers: Answers) -> Chapter | None:
    """Return measured next to printed values; None for smoke runs and experiments of our own."""
    if study.name not in list_recipes() or answers.kind == "smoke":
        return None
    grid = _make_grid(study, answers)
    places = "; ".join(find_places(study.name))
    deviations = describe_deviations(study.name, study.records)
    left_out = (deviations,) if deviations else ()
    if not grid.rows:
        source = f"The paper shows these results in {places}, without printing numbers."
        return Chapter(ChapterId.PAPER, sentences=(source, *left_out))
    note = (
        "Where the paper prints a standard deviation over seeds, it follows the ±. The paper's "
        "times are from different hardware. A dash means: a seed diverged, no run follows the "
        "recipe, the paper prints nothing, or, for differences, the metric is not top-1."
    )
    sentences = (f"Printed in {places}.", *left_out)
    return Chapter(ChapterId.PAPER, sentences=sentences, grids=(grid,), notes=(note,))


def judge_claims(values: Values) -> Chapter:
    """Return the claims of the paper's text, checked on measured values."""
    results = check_claims(values) if values else []
    checked = [result for result in results if result.computed is not None]
    unchecked = len(results) - len(checked)
    sentences = []
    if not values:
        sentences.append("There are no runs of an experiment of the paper.")
    elif unchecked:
        sentences.append(f"{unchecked} of {len(results)} claims need runs that are missing.")
    if not checked:
        return Chapter(ChapterId.CLAIMS, tuple(sentences))
    grid = Grid(
        "Claims of the paper's text, checked on the runs of this report",
        ("claim", "section", "paper", "measured", "result", "details"),
        tuple(map(_format_claim, checked)),
        text_columns=2,
    )
    note = (
        "A claim is confirmed if the measured means agree with the text; intervals are ignored. It "
        "is undecided if some of its runs are missing."
    )
    return Chapter(ChapterId.CLAIMS, tuple(sentences), grids=(grid,), notes=(note,))


def _format_claim(result: ClaimResult) -> tuple[str, ...]:
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
            printed = find_printed(study.name, network, summary.arm.name, summary.budget, metric)
            if printed is None:
                continue
            key = Key(study.name, network, summary.arm.name, summary.budget, metric)
            difference = differences.get((summary.arm, summary.budget))
            plain = find_printed(study.name, network, BASELINE, summary.budget, metric)
            rows.append(
                (
                    summary.arm.title,
                    str(summary.budget),
                    title,
                    _format_measured(measured, key),
                    str(complete.get((summary.arm, summary.budget), 0)),
                    format_difference(difference) if metric == "top1" else "-",
                    printed.show(),
                    "-" if summary.arm == PLAIN else _format_printed_difference(printed, plain),
                )
            )
    head = ("arm", "epochs", "metric", "measured", "n", "measured difference to plain [95 %]")
    caption = "Mean ± standard deviation, measured and in the paper"
    return Grid(caption, (*head, "paper", "paper's difference"), tuple(rows))


def _name_network(study: Study) -> str | None:
    """Return the network in the paper's table of 36 networks; None for other experiments."""
    if study.name != TABLE or not study.records:
        return None
    return (study.network or str(study.records[0]["model"]["name"])).removeprefix("lab:")


def _format_measured(values: Values, key: Key) -> str:
    if key not in values:
        return "-"
    mean, deviation = values[key].mean, values[key].deviation
    return format_number(mean) + ("" if deviation is None else f" ± {format_number(deviation)}")


def _format_printed_difference(one: PrintedValue, other: PrintedValue | None) -> str:
    if other is None:
        return "-"
    return format_number(one.mean - other.mean, max(one.decimals, other.decimals), sign=True)
