"""All statistics of a comparison, and what is missing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from comparison_records import diverge, make_arms, make_record, make_study
from trainact.lab.analysis.answers import answer
from trainact.lab.report.wording import describe_results


def test_a_summary_is_mean_and_sample_deviation_of_the_last_epoch():
    records = [
        make_record("plain", 3, seed, [10, 90, end]) for seed, end in enumerate((60, 62, 64))
    ]
    (summary,) = answer(records).summaries
    assert (summary.mean, summary.std, summary.n, summary.seeds) == (62, 2, 3, (0, 1, 2))


def test_a_diverged_run_is_listed_and_has_no_accuracy():
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 64, 65])
    records[4] = diverge(records[4])
    answers = answer(records)
    assert answers.summaries[1].diverged == (1,)
    assert answers.summaries[1].seeds == (0, 2)
    assert answers.differences[0].n == 2
    assert answers.runs[4].accuracy is None
    assert describe_results(answers)[1][1].endswith("(2 seeds); diverged with seed 1.")


def test_a_seed_without_a_complete_plain_run_is_named():
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 64, 65])
    records[0] = diverge(records[0])
    answers = answer(records)
    assert answers.differences[0].unpaired == (0,)
    assert "without seed 0, where plain has no complete run" in describe_results(answers)[1][1]


@settings(max_examples=30)
@given(order=st.permutations(range(12)))
def test_the_order_of_records_does_not_matter(order):
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 61, 64], lr_10=[59, 60, 61])
    records += make_arms(budget=6, plain=[65, 66, 67])
    answers = answer([records[i] for i in order])
    assert answers == answer(records)


def test_missing_statistics_have_reasons():
    assert answer([]).missing == ("There are no records of runs.",)
    plain, arm = make_arms(plain=[60, 61], tract_0__1=[62, 63])[::2]
    assert "No run is of the arm plain" in answer([arm]).missing[0]
    assert "All runs are of the arm plain" in answer([plain]).missing[0]
    longer = make_record("tract-0.1", 6, 0, 66)
    assert "at 6 epochs has no difference to plain: plain was not run with this budget" in " ".join(
        answer([plain, arm, longer]).missing
    )
    lost = answer([diverge(plain), diverge(arm)])
    assert [text for _, text in describe_results(lost)] == [
        "plain: every run diverged (1 seed).",
        "TrAct λ=0.1: every run diverged (1 seed).",
    ]
    assert "all its runs diverged" in lost.missing[0]
    assert "all runs of plain diverged" in answer([diverge(plain), arm]).missing[0]
    assert "no seed was completed by both" in answer([plain, arm | {"seed": 5}]).missing[0]


def test_a_complete_study_has_every_statistic():
    answers = answer(make_study(seeds=(0, 1)), jobs=2)
    assert [arm.name for arm in answers.arms] == ["plain", "tract-0.1", "tract-0.2", "lr-10"]
    assert answers.budgets == [5, 10, 20]
    assert len(answers.summaries) == len(answers.crossings) == 12
    assert len(answers.differences) == len(answers.time_ratios) == 9
    assert len(answers.speed_ups) == 6
    assert answers.missing == ()
