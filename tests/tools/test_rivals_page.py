"""The page on rivals: gains, losses and the rule, from made-up records."""

import pytest

from comparison_records import make_record
from tools import rivals_page
from tools.rivals import RECIPES
from tools.rivals_page import NO_RECORD, read_rivals, render_trial, write_rivals
from trainact.errors import TrActValueError
from trainact.lab.records.record import seal
from trainact.lab.records.results import RECORDS, write_records

TUNED = {"tract": {"lam": 0.1}, "optimizer": {"first_layer_name": "foof"}}
PARTS = {
    "plain": {},
    "tract-0.1": {"tract": {"enabled": True}},
    "eigen+tract-0.1": {"tract": {"enabled": True}, "model": {"start": "eigen"}},
    "foof+lr-3": {**TUNED, "optimizer": {**TUNED["optimizer"], "first_layer_lr": 3.0}},
    "foof+lr-0.3": {**TUNED, "optimizer": {**TUNED["optimizer"], "first_layer_lr": 0.3}},
    "lr-0.1": {"optimizer": {"first_layer_lr": 0.1}},
    "eigen+frozen": {"model": {"start": "eigen"}, "optimizer": {"first_layer_frozen": True}},
}


def make_records(accuracies, budget=4):
    """Return the records of a recipe: by arm, the accuracy of each seed."""
    records = []
    for arm, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            record = make_record(arm, budget, seed, accuracy)
            for table, fields in PARTS[arm].items():
                record["recipe"].setdefault(table, {}).update(fields)
            record["recipe"]["tract"].setdefault("lam", 0.1)
            records.append({**record, "seal": seal(record)})
    return records


def write_results(folder, name, accuracies, others=()):
    (folder / name).mkdir(exist_ok=True)
    write_records(folder / name / RECORDS, [*make_records(accuracies), *others])


@pytest.fixture
def results(tmp_path):
    for name in RECIPES:
        write_results(
            tmp_path,
            name,
            {
                "plain": [50.0, 51.0, 52.0],
                "tract-0.1": [53.0, 54.1, 54.9],
                "eigen+tract-0.1": [55.0, 56.0, 57.0],
                "eigen+frozen": [49.0, 50.1, 50.9],
            },
        )
    return tmp_path


def test_differences_to_plain_and_to_tract_are_paired(results):
    tables = write_rivals(read_rivals(results))
    gains = tables["rivals-gains"].splitlines()
    assert gains[2].startswith("| plain | 51.00 % |")
    assert "| `tract-0.1` | +3.00 [2.75, 3.25] (3 seeds) |" in tables["rivals-gains"]
    assert "| `eigen+tract-0.1` | +2.00 [1.75, 2.25] (3 seeds) |" in tables["rivals-over-tract"]
    assert "`tract-0.1` |" not in tables["rivals-over-tract"].replace("eigen+tract-0.1", "")


def test_the_rule_counts_the_recipes_on_which_the_start_adds_to_tract(results, monkeypatch):
    undecided = "The rule is not decided before all recipes have {} seeds: better on {} of {} "
    assert apply_rule(results).startswith(undecided.format(5, 0, 0))
    monkeypatch.setattr(rivals_page, "SEEDS", 3)
    assert apply_rule(results).startswith("The rule is met: better on 5 of 5 recipes with 3 seeds")
    for name in RECIPES[:2]:
        (results / name / RECORDS).unlink()
    assert apply_rule(results).startswith("The rule is met: better on 3 of 3 recipes with 3 seeds")
    (results / RECIPES[2] / RECORDS).unlink()
    assert apply_rule(results).startswith(undecided.format(3, 2, 2))


def test_the_rule_is_also_applied_to_the_first_seeds_alone(tmp_path):
    arms = {
        "plain": [50.0] * 5,
        "tract-0.1": [51.0] * 5,
        "eigen+tract-0.1": [51.0, 53.0, 53.0, 53.0, 53.0],
    }
    for name in RECIPES:
        write_results(tmp_path, name, arms)
    met, early = apply_rule(tmp_path).split(" each. ")
    assert met == "The rule is met: better on 5 of 5 recipes with 5 seeds"
    assert early.startswith("With the first 3 seeds alone it was better on 0 of 5 recipes, ")


def apply_rule(results):
    return write_rivals(read_rivals(results))["rivals-rule"]


def test_the_rule_is_not_met_with_wins_on_two_recipes(results, monkeypatch):
    monkeypatch.setattr(rivals_page, "SEEDS", 3)
    arms = {"plain": [50.0, 51, 52], "tract-0.1": [53.0, 54, 55], "eigen+tract-0.1": [53.0, 54, 56]}
    for name in RECIPES[2:]:
        (results / name / RECORDS).unlink()
        write_results(results, name, arms)
    assert apply_rule(results) == (
        "The rule is not met: better on 2 of 5 recipes with 3 seeds each. With the first 3 seeds "
        "alone it was better on 2 of 5 recipes, which does not meet the rule."
    )
    verdict = write_rivals(read_rivals(results))["rivals-verdict"]
    first, _, better, worse, unclear = verdict.splitlines()
    assert first == "`eigen+tract-0.1` against `tract-0.1` on 5 recipes:"
    assert better.startswith(f"- better on 2: {RECIPES[0]} +")
    assert better.count("(3 seeds)") == 2
    assert worse == "- worse on 0"
    assert unclear.startswith(f"- not clearly different on 3: {RECIPES[2]} +0.33 [")


def test_mean_gains_are_over_the_seeds_that_all_arms_have(tmp_path):
    arms = {"plain": [50.0] * 5, "tract-0.1": [51.0, 51, 51, 61, 61], "eigen+frozen": [52.0] * 3}
    write_results(tmp_path, RECIPES[0], arms)
    summary = write_rivals(read_rivals(tmp_path))["rivals-summary"]
    assert "| `tract-0.1` | 1 | +1.00 | " in summary
    assert "| `eigen+frozen` | 1 | +2.00 | " in summary


def test_two_multipliers_of_a_tuned_arm_are_refused(tmp_path):
    write_results(
        tmp_path, RECIPES[0], {"plain": [50.0], "foof+lr-3": [49.0], "foof+lr-0.3": [48.0]}
    )
    with pytest.raises(TrActValueError, match="has foof with several multipliers"):
        read_rivals(tmp_path)


def test_wins_and_losses_are_summed_up(results):
    tables = write_rivals(read_rivals(results))
    summary = tables["rivals-summary"]
    assert "| `eigen+tract-0.1` | 5 | +5.00 | +3.00 | 5 | 0 | 5 | 0 | - | - |" in summary
    assert "| `eigen+frozen` | 5 | -1.00 | +3.00 | 0 | 5 | 0 | 5 | 0 | 5 |" in summary
    assert "| `eigen+frozen` | -6.00 [" in tables["rivals-over-best"]
    losses = tables["rivals-losses"].splitlines()
    assert len(losses) == len(set(losses)) == 5 * 2
    for lost in (
        "`eigen+frozen` against `plain` -1.00 [-1.25, -0.75] (3 seeds)",
        "`tract-0.1` against `eigen+tract-0.1` -2.00 [-2.25, -1.75] (3 seeds)",
    ):
        assert sum(line.endswith(lost) for line in losses) == 5
    slow = (
        "`eigen+frozen` against `eigen+tract-0.1`: -6.00 points on average over 5 recipes, 95 % "
        "interval over recipes [-6.00, -6.00]; better on 0, worse on 5."
    )
    assert slow in tables["rivals-slow"]


def test_each_pair_of_arms_counts_once_among_the_intervals(results):
    chance = write_rivals(read_rivals(results))["rivals-chance"]
    assert "about 2 of the 30 intervals" in chance  # 5 recipes, 6 pairs of 4 arms


def test_two_recipes_have_a_mean_without_an_interval(results):
    for name in RECIPES[2:]:
        (results / name / RECORDS).unlink()
    slow = write_rivals(read_rivals(results))["rivals-slow"]
    assert "-6.00 points on average over 2 recipes; better on 0, worse on 2." in slow


def test_no_loss_is_no_list(tmp_path):
    write_results(tmp_path, RECIPES[0], {"plain": [50.0, 51.0], "tract-0.1": [53.0, 54.1]})
    assert write_rivals(read_rivals(tmp_path))["rivals-losses"] == "There are none."


def test_a_tuned_arm_is_one_arm_whatever_its_multiplier(tmp_path):
    for name, arm in zip(RECIPES, ["foof+lr-3", "foof+lr-0.3"] * 3, strict=False):
        arms = {"plain": [50.0, 51.0, 52.0], arm: [49.0, 50.1, 50.9]}
        write_results(tmp_path, name, arms)
    tables = write_rivals(read_rivals(tmp_path))
    assert "| `foof` | 5 | -1.00 | - | 0 | 5 | - | - | - | - |" in tables["rivals-summary"]
    (row,) = [line for line in tables["rivals-gains"].splitlines() if "foof" in line]
    assert row.startswith("| `foof` | -1.00 [-1.25, -0.75] (3 seeds, lr ×3) | -1.00 [-1.25, -0.75]")
    assert row.count("lr ×0.3)") == 2
    assert tables["rivals-losses"].count("`foof` against `plain` -1.00") == 5


def test_every_arm_of_the_trial_is_described(results):
    table = render_trial([])
    assert "| `eigen+tract-0.1+lr-0.1` | the first layer starts with the eigenvectors" in table
    assert "; TrAct with λ = 0.1; the first layer's learning rate times 0.1 |" in table
    assert "| `tract-centered` | TrAct with the covariance of the inputs, jointly" in table
    assert "; its first-layer learning rate is tuned |" in table
    assert table.startswith("Planned, but without any run so far:")
    assert table.count("\n| `") == 19
    write_results(results, RECIPES[0], {"plain": [50.0], "lr-0.1": [50.0]})
    table = render_trial(read_rivals(results))
    assert "; its bias is trained | 4 |" in table
    assert "| `lr-0.1` | the first layer's learning rate times 0.1 | 1 |" in table
    done, planned = (part.count("\n| `") for part in table.split("Planned, but without"))
    assert (done, planned) == (5, 15)


def test_without_records_every_place_says_so(tmp_path):
    tables = write_rivals(read_rivals(tmp_path))
    assert tables.pop("rivals-arms") == render_trial([])
    assert set(tables.values()) == {NO_RECORD}
    write_results(tmp_path, RECIPES[0], {"plain": [50.0, 51.0]})
    tables = write_rivals(read_rivals(tmp_path))
    assert tables["rivals-verdict"] == tables["rivals-slow"] == NO_RECORD


@pytest.mark.parametrize("folder", ["", "more"])
def test_shorter_budgets_do_not_count(results, folder):
    """In the same file as the longest one, or in a file of their own."""
    accuracies = {"plain": [50.0, 52.0], "tract-0.1": [53.0, 53.0]}
    shorter = make_records({"plain": [1.0, 1.0], "tract-0.1": [1.0, 1.0]}, 2)
    if folder:
        write_results(results, RECIPES[0], accuracies)
        (results / RECIPES[0] / folder).mkdir()
        write_records(results / RECIPES[0] / folder / RECORDS, shorter)
    else:
        write_results(results, RECIPES[0], accuracies, shorter)
    found = read_rivals(results)
    assert len(found) == len(RECIPES)
    assert found[0].budget == 4
    assert found[0].plain == 51
