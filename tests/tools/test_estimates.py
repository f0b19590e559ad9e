"""The committed tables of multiply-adds and throughputs are what the code and the records give."""

import pytest

from comparison_records import make_record
from result_folders import write_record

pytest.importorskip("rich", reason="the lab's tables need rich")

from tools import estimates
from trainact import TrActValueError
from trainact.lab.cost.estimates import count_run
from trainact.lab.data.published import count_images
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import recipe_to_dict

SMALL = "cifar10-cpu-resnet-sgd"


def test_the_committed_tables_are_up_to_date(capsys):
    assert estimates.main(["--check"]) == 0
    assert capsys.readouterr().out == "out of date: nothing\n"


@pytest.mark.slow
def test_a_table_that_is_out_of_date_is_written_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(estimates, "FOLDER", tmp_path)
    monkeypatch.setattr(estimates, "list_models", lambda: [("lab:resnet18-tract", "{}", 10, 32)])
    assert estimates.main(["--check"]) == 1
    assert not list(tmp_path.iterdir())
    assert estimates.main([]) == 0
    assert estimates.main(["--check"]) == 0
    assert "train = 140186624" in (tmp_path / "multiply_adds.toml").read_text()


def make_run_record(recipe, seconds, **environment):
    """Return a record of four epochs of training, each but the first of so many seconds."""
    record = make_record("plain", 4, 0, 80, seconds=seconds, recipe=recipe_to_dict(recipe))
    for epoch in record["epochs"]:
        epoch["train_seen"] = count_images(recipe.data).train
    record["data"]["classes"] = count_images(recipe.data).classes
    record["environment"] |= environment
    return record | {"recipe_id": f"{seconds}"}


def test_throughputs_are_medians_over_full_runs(tmp_path):
    recipe = find_experiment(SMALL).plan()[0]
    for seconds in (10.0, 20.0, 40.0):
        write_record(tmp_path / SMALL, make_run_record(recipe, seconds))
    gpu = {"device": "cuda:0", "accelerator": "Some GPU"}
    write_record(tmp_path / "other", make_run_record(recipe, 0.5, **gpu))
    for device in ("mps", "xpu:0"):
        write_record(tmp_path / device, make_run_record(recipe, 0.1, device=device))
    write_record(tmp_path / SMALL, make_run_record(recipe, 1.0) | {"kind": "smoke"})
    damaged = write_record(tmp_path / "damaged", make_run_record(recipe, 1.0)) / "record.json"
    damaged.write_text("{")
    cpu, cuda = estimates.measure_throughputs(tmp_path)
    assert cpu.hardware == "Some Processor @ 2.50GHz, 1 thread"
    assert "3 runs" in cpu.source
    train_only = count_run(recipe) / 2 * 6 / 7  # three forwards of 20,000 and one of 10,000
    assert cpu.rate == pytest.approx(train_only / 20)
    assert cuda.hardware == "Some GPU"
    assert cuda.rate == pytest.approx(train_only / 0.5)


def test_without_a_run_on_a_cpu_nothing_is_written(tmp_path):
    recipe = find_experiment(SMALL).plan()[0]
    write_record(tmp_path / SMALL, make_run_record(recipe, 1.0) | {"kind": "smoke"})
    with pytest.raises(TrActValueError, match="no full run on a CPU"):
        estimates.measure_throughputs(tmp_path)
