"""docs/when.md: verdicts by recipe, the control, and the paper's printed numbers."""

import json

import pytest

from comparison_records import diverge, make_record
from result_folders import write_record

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from tools import pages
from tools.evidence import read_evidence
from tools.printed_results import list_printed_pairs
from tools.when import write_when
from trainact.lab.paper.tables import read_table

BETTER, WORSE, UNCLEAR, SINGLE = (
    *("cifar10-cpu-resnet-sgd", "cifar10-cpu-vit-adam"),
    *("cifar10-cpu-vit-sgd", "imagenette-cpu-vit"),
)
BENCH = {"step": [
    {"name": "ResNet", "extra_over_plain": {"median": 0.004}},
    {"name": "ViT", "extra_over_plain": {"median": 0.0006}},
    {"name": "VGG", "extra_over_plain": {"median": 0.002}, "noisy": True},
]}  # fmt: skip


def write_arms(results, name, differences, arm="tract-0.1", budget=4, plain=True):
    for seed, difference in enumerate(differences):
        if plain:
            write_record(results / name, make_record("plain", budget, seed, 50))
        write_record(results / name, make_record(arm, budget, seed, 50 + difference))


@pytest.fixture
def results(tmp_path):
    write_arms(tmp_path, BETTER, (2.0, 2.5, 3.0))
    write_arms(tmp_path, BETTER, (1.0, 1.5, 2.0), "lr-0.1", plain=False)
    write_arms(tmp_path, BETTER, (0.5, 1.0, 1.5), budget=2)
    write_arms(tmp_path, BETTER, (4.0, 4.5, 5.0), "tract-0.2", plain=False)
    write_arms(tmp_path, WORSE, (-2.0, -2.5, -3.0))
    write_arms(tmp_path, UNCLEAR, (-1.0, 1.5))
    write_arms(tmp_path, SINGLE, (1.0,))
    return tmp_path


def test_without_records_the_page_says_so(tmp_path):
    texts = write_when(read_evidence(tmp_path), BENCH)
    empty = {name for name, text in texts.items() if text == "No records yet."}
    places = ("summary", "results", "control", "start", "budgets", "lams")
    assert empty == {f"when-{name}" for name in places}


def test_each_recipe_is_in_its_group(results):
    texts = write_when(read_evidence(results), BENCH)
    first, ranges, head, counts, note = texts["when-summary"].split("\n\n")
    assert "over 4 recipes of our own." in first
    assert first.endswith("have at most 4 epochs:")
    data, _, gains = ranges.splitlines()
    assert "4 recipes with photos, " in data
    assert gains == "| TrAct | -2.50 to +2.50 |"
    titles, _, *rows = counts.splitlines()
    assert head.startswith("In how many of these 4 recipes a method was")
    assert "about 0 of these 4 intervals would exclude it by chance" in note
    verdicts = "worse | no clear difference | better | one seed | no result |"
    assert titles == f"| method | compared with | {verdicts}"
    to_plain, to_control, *others = rows
    assert to_plain == "| TrAct | plain training | 1 | 1 | 1 | 1 | 0 |"
    assert to_control.endswith(" of the first layer | 0 | 0 | 1 | 0 | 3 |")
    assert len(others) == 6
    assert all(row.endswith(" | 0 | 0 | 0 | 0 | 4 |") for row in others)
    groups = texts["when-results"].split("**")[1:]
    found = dict(zip(groups[::2], groups[1::2], strict=True))
    better, worse = "Better than plain training", "Worse than plain training"
    assert list(found) == [worse, "No clear difference", better, "One seed, so no interval"]
    expected = (better, worse, "One seed, so no interval", "No clear difference")
    for title, name in zip(expected, (BETTER, WORSE, SINGLE, UNCLEAR), strict=True):
        assert f"- {name}, " in found[title], title
        assert found[title].count("\n- ") == 1


def test_tract_is_compared_with_the_control_at_the_largest_budget(results):
    texts = write_when(read_evidence(results), BENCH)
    row, *others = texts["when-control"].splitlines()[2:]
    *cells, to_plain, control, to_control = row.strip("| ").split(" | ")
    assert cells == [BETTER, "plain, first-layer lr ×0.1", "4", "3"]
    assert to_plain.startswith("+2.50 [")
    assert control.startswith("+1.50 [")
    assert to_control == "+1.00 [1.00, 1.00]"
    assert len(others) == 3
    assert all(other.endswith(" | no result yet" * 5 + " |") for other in others)


def test_recipes_without_a_clear_gain_over_the_control_are_named(tmp_path):
    write_arms(tmp_path, BETTER, (2.0, 2.5, 3.0))
    write_arms(tmp_path, BETTER, (2.5, 2.0, 3.5), "lr-0.1", plain=False)
    write_arms(tmp_path, "cifar10-speed93", (2.0, 2.5, 3.0))
    text = write_when(read_evidence(tmp_path), BENCH)["when-control"]
    assert "| cifar10-speed93 | none planned | - | - | - | - | - |" in text
    assert text.endswith(f"\n\nTrAct is not clearly better than the control on {BETTER}.")


def test_a_mean_average_precision_is_compared_in_points():
    (pair,) = list_printed_pairs(read_table("detection"))
    assert (pair.difference, pair.decimals) == (1.2, 1)


def test_a_control_of_a_smaller_budget_is_compared_there(tmp_path):
    write_arms(tmp_path, BETTER, (2.0, 2.5, 3.0))
    write_arms(tmp_path, BETTER, (1.0, 1.5, 2.0), budget=2)
    write_arms(tmp_path, BETTER, (0.5, 1.0, 1.5), "lr-0.1", budget=2, plain=False)
    (row,) = write_when(read_evidence(tmp_path), BENCH)["when-control"].splitlines()[2:]
    assert row.startswith(f"| {BETTER} | plain, first-layer lr ×0.1 | 2 | 3 | +1.50 [")
    assert row.endswith(" | +0.50 [0.50, 0.50] |")


def test_the_control_and_the_start_are_compared_on_shared_seeds(tmp_path):
    write_arms(tmp_path, BETTER, (2.0, 2.5, 9.0))
    write_arms(tmp_path, BETTER, (1.0, 1.5), "lr-0.1", plain=False)
    write_arms(tmp_path, BETTER, (4.0, 5.0, 11.0), "eigen+tract-0.1", plain=False)
    write_arms(tmp_path, BETTER, (4.0, 4.5), "eigen+frozen", plain=False)
    texts = write_when(read_evidence(tmp_path), BENCH)
    (row,) = texts["when-control"].splitlines()[2:]
    assert "| 4 | 2 | +2.25 [" in row
    assert "| +1.25 [" in row
    assert row.endswith(" | +1.00 [1.00, 1.00] |")
    alone, frozen, tract, *to_plain = texts["when-start"].splitlines()[2:]
    frozen_gain, tract_gain = (row.split(" | ")[1:6] for row in to_plain)
    assert frozen_gain[:4] == ["eigen+frozen", "plain", "4", "+4.25 [1.07, 7.43]"]
    assert tract_gain[0:3] == ["eigen+tract-0.1", "plain", "4"]
    assert tract.startswith(f"| {BETTER} | eigen+tract-0.1 | TrAct λ=0.1 | 4 | +2.17 [")
    assert tract.endswith(" | 3 |")
    assert "| eigen+tract-0.1 | eigen+frozen | 4 | +0.25 [" in frozen
    assert frozen.endswith(" | 2 |")
    assert "| TrAct λ=0.1 | eigen+frozen | 4 | -2.00 [-2.00, -2.00] | 2 |" in alone


def test_a_single_seed_of_a_larger_budget_replaces_nothing(results):
    before = write_when(read_evidence(results), BENCH)
    write_arms(results, BETTER, (9.0,), budget=8)
    write_arms(results, BETTER, (9.0,), "lr-0.1", budget=8, plain=False)
    after = write_when(read_evidence(results), BENCH)
    for place in ("summary", "results", "control", "lams"):
        assert after[f"when-{place}"] == before[f"when-{place}"]


def test_diverged_runs_are_not_hidden_by_a_smaller_budget(results):
    for seed in (0, 1, 2):
        write_record(results / BETTER, make_record("plain", 8, seed, 50))
        write_record(results / BETTER, diverge(make_record("tract-0.1", 8, seed, 60), 3))
        texts = write_when(read_evidence(results), BENCH)
        assert "\nRuns of TrAct diverged on 1 recipe." in texts["when-summary"]
    assert f"**No result**\n\n- {BETTER}, 8 epochs: every run diverged." in texts["when-results"]
    write_record(results / WORSE, diverge(make_record("tract-0.1", 4, 3, 60), 3))
    texts = write_when(read_evidence(results), BENCH)
    (line,) = (line for line in texts["when-results"].splitlines() if WORSE in line)
    assert line.endswith("(3 seeds); diverged with seed 3.")
    assert "\nRuns of TrAct diverged on 2 recipes." in texts["when-summary"]


def test_runs_without_a_common_seed_are_told_from_runs_that_diverged(results):
    folder = results / SINGLE
    for record in (
        make_record("plain", 8, 1, 50), make_record("tract-0.1", 8, 0, 60),
        diverge(make_record("tract-0.1", 8, 1, 60), 3),
    ):  # fmt: skip
        write_record(folder, record)
    texts = write_when(read_evidence(results), BENCH)
    assert f"- {SINGLE}, 8 epochs: no seed was completed by both." in texts["when-results"]


def test_a_diverged_start_is_named(results):
    write_arms(results, BETTER, (4.0, 4.5, 5.0), "eigen+frozen", plain=False)
    write_record(results / BETTER, diverge(make_record("eigen+tract-0.1", 4, 0, 60), 3))
    summary = write_when(read_evidence(results), BENCH)["when-summary"]
    assert "\nRuns of TrAct from a whitened start diverged on 1 recipe." in summary
    assert "Runs of TrAct diverged" not in summary


def test_three_seeds_of_a_smaller_budget_are_preferred_to_two(tmp_path):
    """And the table of starts has both budgets."""
    for budget, differences in ((2, (-1.0, -1.2, -1.1)), (4, (-1.0, 3.0))):
        write_arms(tmp_path, BETTER, differences, budget=budget)
        write_arms(tmp_path, BETTER, [0.0] * len(differences), "eigen+frozen", budget, plain=False)
    texts = write_when(read_evidence(tmp_path), BENCH)
    assert " | better | no result |" in texts["when-summary"]  # no comparison has one seed
    assert "| TrAct | a frozen whitened start | 1 | 0 | 0 | 0 |" in texts["when-summary"]
    rows = [row.split(" | ")[3:] for row in texts["when-start"].splitlines()[2:]]
    assert [(epochs, n) for epochs, _, n in rows] == [("2", "3 |"), ("4", "2 |")] * 2


def test_tract_is_compared_with_a_trained_start(tmp_path):
    write_arms(tmp_path, BETTER, (2.0, 2.5))
    write_arms(tmp_path, BETTER, (1.0, 1.5), "eigen", plain=False)
    write_arms(tmp_path, BETTER, (4.0, 4.5), "eigen+tract-0.1", plain=False)
    rows = write_when(read_evidence(tmp_path), BENCH)["when-start"].splitlines()[2:]
    assert [row.split(" | ")[1:5] for row in rows] == [
        ["eigen+tract-0.1", "eigen", "4", "+3.00 [3.00, 3.00]"],
        ["eigen+tract-0.1", "TrAct λ=0.1", "4", "+2.00 [2.00, 2.00]"],
        ["eigen+tract-0.1", "plain", "4", "+4.25 [1.07, 7.43]"],
    ]


def test_all_lambdas_of_a_table_have_the_same_seeds(tmp_path):
    write_arms(tmp_path, BETTER, (2.0, 2.5, 9.0))
    write_arms(tmp_path, BETTER, (4.0, 4.5), "tract-0.2", plain=False)
    first, second = write_when(read_evidence(tmp_path), BENCH)["when-lams"].splitlines()[2:]
    assert first.startswith(f"| {BETTER} | 0.1 | +2.25 [")
    assert second.startswith(f"| {BETTER} | 0.2 | +4.25 [")


def test_a_single_lambda_is_no_comparison(tmp_path):
    write_arms(tmp_path, BETTER, (2.0, 2.5))
    assert write_when(read_evidence(tmp_path), BENCH)["when-lams"] == "No records yet."


def test_budgets_and_lambdas_are_tables(results):
    texts = write_when(read_evidence(results), BENCH)
    budgets = texts["when-budgets"].splitlines()[2:]
    assert [row.split(" | ")[:2] for row in budgets] == [[f"| {BETTER}", "2"], [f"| {BETTER}", "4"]]
    lams = [row for row in texts["when-lams"].splitlines() if BETTER in row]
    assert [row.split(" | ")[1] for row in lams] == ["0.1", "0.2"]


def test_the_cost_is_that_of_all_measured_steps():
    cost = write_when({}, BENCH)["when-cost"]
    assert "Of 3 measured training steps" in cost
    assert "from 0.06 % (ViT) to 0.40 % (ResNet)" in cost


def test_the_papers_pairs_are_settings_and_not_averages():
    pairs = list_printed_pairs(read_table("cifar100"))
    assert len(pairs) == 36
    assert {pair.key.metric for pair in pairs} == {"top1"}
    losses = write_when({}, BENCH)["when-paper-losses"]
    below = [pair for pair in pairs if pair.difference < 0]
    assert below
    for pair in below:
        assert (
            f"cifar100-table, {pair.key.network}, 200 epochs: plain {pair.plain.show()}" in losses
        )


def test_the_papers_results_are_a_short_list():
    first, *others, last = write_when({}, BENCH)["when-paper-brief"].splitlines()
    assert first == (
        "- 36 networks on CIFAR-100, 200 epochs: higher with TrAct in 33 of 36, mean difference "
        "+0.49"
    )
    assert len(others) == 4
    assert (
        last == "- Epochs for the same accuracy: fewer by factors of 1.25 to 4, as the paper says"
    )


def test_every_place_is_filled():
    text = "".join((pages.ROOT / name).read_text() for name in ("README.md", "docs/when.md"))
    record = json.loads((pages.ROOT / "results" / "bench" / "bench.json").read_text())
    for name in write_when({}, record):
        assert f"<!-- {name} -->" in text
