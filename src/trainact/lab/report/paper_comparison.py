"""Measured values next to the paper's, and its claims checked on them."""

from trainact.lab.analysis.answers import Answers, answer
from trainact.lab.analysis.studies import Study
from trainact.lab.paper.claims import check_claims, read_claim
from trainact.lab.paper.faithful import describe_deviations, describe_tuned, find_faithful
from trainact.lab.paper.measured import find_network, measure_values
from trainact.lab.paper.tables import find_places, find_printed, list_printed, list_recipes
from trainact.lab.paper.values import METRICS, Key, PrintedValue, Values
from trainact.lab.recipes.arms import PLAIN
from trainact.lab.records.record import Record
from trainact.lab.report.chapters import Chapter, ChapterId
from trainact.lab.report.grid import Grid
from trainact.lab.report.wording import format_difference, format_number

__all__ = ["compare_with_paper", "judge_claims", "measure_study"]

VERDICTS = {True: "confirmed", False: "not confirmed", None: "undecided"}


def measure_study(study: Study) -> Values:
    """Return the means of a study's full runs that follow its recipe, by the paper's keys."""
    return measure_values(study.name, _find_faithful(study))


def compare_with_paper(study: Study, answers: Answers) -> Chapter | None:
    """Return measured next to printed values; None for smoke runs and other experiments."""
    if study.name not in list_recipes() or answers.kind == "smoke":
        return None
    grid = _make_grid(study, answers)
    places = "; ".join(find_places(study.name))
    given = study.name, study.records, study.tuning
    remarks = tuple(text for text in (describe_tuned(*given), describe_deviations(*given)) if text)
    if not grid.rows:
        source = f"The paper shows these results in {places}, without printing numbers."
        if list_printed(study.name):
            source = f"The paper prints other lengths of training in {places}."
        return Chapter(ChapterId.PAPER, (source, *remarks))
    note = (
        "Where the paper prints a standard deviation over seeds, it follows the ±. The paper's "
        "times are from different hardware. A dash means: a seed diverged, no run follows the "
        "recipe, the paper prints nothing, or, for differences, the metric is not top-1."
    )
    sentences = (f"Printed in {places}.", *remarks)
    return Chapter(ChapterId.PAPER, sentences, grids=(grid,), notes=(note,))


def judge_claims(values: Values) -> Chapter:
    """Return the claims of the paper's text, checked on measured values."""
    results = check_claims(values) if values else []
    checked = [result for result in results if result.computed is not None]
    unchecked = len(results) - len(checked)
    sentences: tuple[str, ...] = ()
    if not values:
        sentences = ("There are no runs of an experiment of the paper.",)
    elif unchecked:
        sentences = (f"{unchecked} of {len(results)} claims need runs that are missing.",)
    if not checked:
        return Chapter(ChapterId.CLAIMS, sentences)
    rows = []
    for result in checked:
        claim, verdict = read_claim(result.name), VERDICTS[result.holds]
        measured, detail = result.computed or "-", result.detail or "-"
        rows.append((claim.says, claim.section, result.stated, measured, verdict, detail))
    head = ("claim", "section", "paper", "measured", "result", "details")
    caption = "Claims of the paper's text, checked on the runs of this report"
    grid = Grid(caption, head, tuple(rows), text_columns=2)
    note = (
        "A claim is confirmed if the measured means agree with the text; intervals are ignored. It "
        "is undecided if some of its runs are missing."
    )
    return Chapter(ChapterId.CLAIMS, sentences, grids=(grid,), notes=(note,))


def _find_faithful(study: Study) -> list[Record]:
    return find_faithful(study.name, study.records, study.tuning)


def _make_grid(study: Study, answers: Answers) -> Grid:
    faithful = answer(_find_faithful(study), jobs=0)
    differences = {(d.arm, d.budget): d for d in faithful.differences}
    complete = {(s.arm, s.budget): s.n for s in faithful.summaries}
    measured, network = measure_study(study), find_network(study.name, study.records[0])
    rows = []
    for summary in sorted(answers.summaries, key=lambda s: s.budget):
        for metric, title in METRICS.items():
            arm, budget = summary.arm, summary.budget
            printed = find_printed(study.name, network, arm, budget, metric)
            if printed is None:
                continue
            difference = differences.get((arm, budget)) if metric == "top1" else None
            plain = find_printed(study.name, network, PLAIN, budget, metric)
            rows.append(
                (
                    arm.title,
                    str(budget),
                    title,
                    _format_measured(measured, Key(study.name, network, arm.name, budget, metric)),
                    str(complete.get((arm, budget), 0)),
                    format_difference(difference),
                    printed.show(),
                    "-" if arm == PLAIN else _format_printed_difference(printed, plain),
                )
            )
    head = ("arm", "epochs", "metric", "measured", "n", "measured difference to plain [95 %]")
    caption = "Mean ± standard deviation, measured and in the paper"
    return Grid(caption, (*head, "paper", "paper's difference"), tuple(rows))


def _format_measured(values: Values, key: Key) -> str:
    if key not in values:
        return "-"
    mean, deviation = values[key].mean, values[key].deviation
    return format_number(mean) + ("" if deviation is None else f" ± {format_number(deviation)}")


def _format_printed_difference(one: PrintedValue, other: PrintedValue | None) -> str:
    if other is None:
        return "-"
    return format_number(one.mean - other.mean, max(one.decimals, other.decimals), sign=True)
