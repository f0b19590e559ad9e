"""docs/reproduce.md: every table and figure, working commands, and the SLURM scripts."""

import contextlib
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from comparison_records import make_record
from lab_helpers import HERE, run_several
from result_folders import make_faithful, write_record, write_tuning

pytest.importorskip("rich", reason="the lab's tables need rich")

from tools import pages
from tools.reproduce import (
    find_job_hours,
    make_place_grid,
    make_ratio_grid,
    make_time_grid,
    read_full_studies,
    write_commands,
)
from trainact.lab.commands import cli
from trainact.lab.cost.estimates import count_run, read_throughputs
from trainact.lab.paper.tables import find_printed, read_times
from trainact.lab.recipes.arms import PLAIN
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import change_recipe
from trainact.lab.records.record import read_record
from trainact.lab.running.plan import Shard, format_command, place_runs

PAPER = [name for name in list_experiments() if find_experiment(name).paper]
GPU = read_throughputs()[1]
SCRIPTS = pages.ROOT / "docs" / "slurm"
SRUN = '#!/bin/bash\n[ "$1" = --cpus-per-task ] && shift 2\nexec "$@"\n'
SCONTROL = """#!/bin/bash
if [ "$1" = requeue ]; then echo "$@" >> scontrol.txt; exit; fi
echo localhost
sleep 0.5
echo another
"""  # the names one at a time


@pytest.fixture(scope="module")
def page():
    return (pages.ROOT / "docs" / "reproduce.md").read_text()


def test_every_table_and_figure_of_the_paper_can_be_reproduced():
    grid = make_place_grid()
    assert [row[0] for row in grid.rows] == [
        *(f"Figure {number}" for number in range(1, 13)),
        "Section 4.6",
        *(f"Table {number}" for number in range(1, 8)),
    ]
    assert all(made for _, _, made in grid.rows)


@pytest.mark.parametrize("name", PAPER)
def test_every_recipe_of_the_paper_is_on_the_page(name, page):
    experiment = find_experiment(name)
    places = [place for place, _, made in make_place_grid().rows if f"[{name}]" in made]
    assert places
    for place in places:  # "Tables 1, 6 and 7"
        kind, number = place.split()
        assert kind in experiment.paper
        assert re.search(rf"\b{number}\b", experiment.paper)
    assert f"\n{write_commands(experiment, GPU)}\n" in page
    assert f"| `{name}` | {len(experiment.plan())} |" in page


@pytest.mark.parametrize("name", PAPER)
def test_the_command_for_one_gpu_works(name, capsys):
    experiment = find_experiment(name)
    words = shlex.split(format_command(experiment).replace("\\\n", " "))
    assert cli.main([*words, "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(experiment.plan())


def test_commands_name_the_data_and_weights_that_a_recipe_needs():
    assert format_command(find_experiment("cifar10-vit")) == "run cifar10-vit"
    finetuning = format_command(find_experiment("deit3-vit-s-finetune-a"))
    assert "runs/deit3-vit-s/runs/{pretraining}-400ep" in finetuning
    transfer = format_command(find_experiment("transfer-cars"))
    assert "--data path/to/stanford_cars" in transfer
    assert "runs/deit3-vit-s/runs/{pretraining}-800ep" in transfer
    assert "vgg16.safetensors" in format_command(find_experiment("detection-voc2007"))


def test_large_images_use_torchrun_and_small_ones_a_job_array():
    names = "imagenet-resnet18", "cifar10-vit", "deit3-vit-b"
    large, small, huge = (write_commands(find_experiment(name), GPU) for name in names)
    assert "torchrun --nnodes 2" in large
    assert "docs/slurm/nodes.sh" in large
    assert "torchrun" not in small
    assert (
        "sbatch --array 1-20 --time 7:00:00 docs/slurm/array.sh \\\n        run cifar10-vit"
        in small
    )
    assert "sbatch --array 1-12 --time 43:00:00 docs/slurm/array.sh \\\n" in large
    assert "array" not in huge  # its runs take longer than a job
    assert huge.count("run.accumulation=8") == 2  # on one GPU, alone and beside the other run
    assert huge.count("run.accumulation=2") == 1  # on four


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_rates_for_cifar100_are_tuned_first(optimizer, tmp_path, monkeypatch, capsys):
    experiment = find_experiment(f"cifar100-resnet18-{optimizer}")
    monkeypatch.chdir(tmp_path)
    lines = write_commands(experiment, GPU).replace("\\\n", " ").splitlines()
    tune, run, *_ = (line.split()[1:] for line in lines if line.startswith("    trainact "))
    assert tune == ["tune", experiment.name]
    assert run[:3] == ["run", experiment.name, "--tuned"]
    folder = tmp_path / "runs" / experiment.name
    write_tuning(folder, chosen=experiment.grid["optimizer.lr"][1], budgets=experiment.budgets)
    words = shlex.split(format_command(experiment, tuned=True).replace("\\\n", " "))
    assert cli.main([*words, "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(experiment.plan())


@pytest.mark.parametrize("name", ["time-cifar10-vit", "time-deit3-vit-b", "time-deit3-vit-s"])
def test_recipes_for_time_run_alone_on_one_gpu(name):
    commands = write_commands(find_experiment(name), GPU)
    assert commands.count("trainact run") == 1
    for other in ("torchrun", "sbatch", "run.accumulation"):
        assert other not in commands


def test_no_other_recipe_of_the_paper_is_tuned_first():
    tuned = [
        name for name in PAPER if "trainact tune" in write_commands(find_experiment(name), GPU)
    ]
    assert tuned == ["cifar100-resnet18-adam", "cifar100-resnet18-sgd"]


def test_commands_for_4_and_8_gpus_are_shown():
    small, large, two = (
        write_commands(find_experiment(name), GPU)
        for name in ("cifar10-vit", "imagenet-resnet50", "deit3-vit-b")
    )
    for gpus in (4, 8):
        assert f"# {gpus} GPUs in one machine, one run on each\n" in small
        assert f"    trainact run cifar10-vit --jobs {gpus}\n" in small
        assert f"    torchrun --nproc-per-node {gpus} -m trainact.lab \\\n" in large
    assert "--nproc-per-node" not in small
    assert "# 2 GPUs in one machine, one run on each\n" in two  # it has two runs
    assert "one run on each" in large


def test_the_time_limit_of_a_job_follows_from_its_share():
    """Of 20 jobs each does 27 runs of the table: more than the longest run, and more than 48 h."""
    table = find_experiment("cifar100-table")
    runs = place_runs(table.plan(), Path())
    assert find_job_hours(runs, 20, GPU) == 48
    shares = [
        sum(GPU.estimate_seconds(count_run(run.recipe)) for run in Shard(job, 90).choose(runs))
        for job in range(1, 91)
    ]
    assert find_job_hours(runs, 90, GPU) == math.ceil(1.5 * max(shares) / 3600)
    longest = max(GPU.estimate_seconds(count_run(run.recipe)) for run in runs)
    assert max(shares) > longest
    unknown = change_recipe(runs[0].recipe, {"data.name": "/some/folder"})
    assert find_job_hours(place_runs([unknown], Path()), 1, GPU) is None


def test_the_table_of_times_counts_shared_runs_once_and_our_arms_apart():
    experiments = [find_experiment(name) for name in ("cifar10-vit", "cifar10-vit-norms")]
    one, norms, total = make_time_grid(experiments, GPU, []).rows
    assert one[1:4] == ("80", "80", "-")
    assert norms[1:4] == ("160", "80", "40")
    assert total[:4] == ("all", "240", "160", "")
    assert float(total[5]) == pytest.approx(float(one[5]) + float(norms[5]), abs=1)


def test_runs_whose_times_are_the_result_are_counted_in_any_case():
    experiments = [find_experiment(name) for name in ("cifar10-vit", "time-cifar10-vit")]
    _, alone, total = make_time_grid(experiments, GPU, []).rows
    assert alone[1:3] == ("6", "6")
    assert float(alone[5]) > 1
    assert total[:3] == ("all", "86", "86")


def test_finished_runs_are_counted_with_their_hardware(tmp_path):
    assert read_full_studies(tmp_path) == []
    beyond = max(find_experiment("cifar10-vit").seeds) + 1  # more seeds than the recipe's
    for seed in (0, 1, beyond):
        record = make_faithful("cifar10-vit", make_record("plain", 100, seed, 80))
        write_record(tmp_path / "cifar10-vit", record)
    write_record(tmp_path / "cifar10-vit", make_record("plain", 200, 0, 80))  # of another recipe
    write_record(tmp_path / "cifar10-vit", make_record("plain", 1, 0, 30, kind="smoke"))
    studies = read_full_studies(tmp_path)
    experiments = [find_experiment(name) for name in ("cifar10-vit", "cifar10-vit-lambda")]
    one, other, _ = make_time_grid(experiments, GPU, studies).rows
    assert one[-1].startswith("2 of 80 runs on Some Processor")
    assert other[-1] == "none"


def test_the_papers_gpu_hours_are_next_to_the_estimate():
    experiments = [find_experiment(name) for name in ("deit3-vit-s", "cifar10-vit")]
    small, tiny, _ = make_time_grid(experiments, GPU, []).rows
    assert small[6] == "535 for 800 epochs (4 NVIDIA A40)"
    assert tiny[6] == "0.3 for 100 epochs (1 NVIDIA RTX 4090)"
    assert 0.5 < float(small[4]) / 535 < 2  # the estimate is of that order


def test_the_claims_on_time_have_their_source_their_recipe_and_what_was_measured(tmp_path):
    rows = {row[-1]: row for row in make_ratio_grid([]).rows}
    small = rows["[time-deit3-vit-s](#time-deit3-vit-s)"]
    assert small[1:6] == (
        *("Section 4.3 and 4.6", "4 NVIDIA A40", "133:52 h and 133:58 h"),
        *("0.08", "none"),
    )
    tiny = rows["[time-cifar10-vit](#time-cifar10-vit)"]
    assert tiny[2:5] == ("1 NVIDIA RTX 4090", "1091 s and 1197 s", "9.7")
    name = "time-deit3-vit-b"
    for arm, seconds in (("plain", 3.0), ("tract", 3.003)):
        record = make_faithful(name, make_record(arm, 2, 0, 1.0, seconds=seconds))
        write_record(tmp_path / name, record)
    (row,) = [row for row in make_ratio_grid(read_full_studies(tmp_path)).rows if name in row[-1]]
    assert row[5] == "0.100"


def test_printed_times_are_those_of_the_runtime_table():
    assert [time.gpus for time in read_times()] == [1, 1, 4, 4, 8, 8]
    plain = find_printed("deit3-vit-b", None, PLAIN, 400, "minutes")
    assert read_times()[4].hours == plain.mean / 60


def test_every_link_on_the_page_works(page):
    for target in re.findall(r"\]\(([^)]+)\)", page):
        if target.startswith("#"):
            assert f"\n### {target[1:]}\n" in page
        else:
            assert (pages.ROOT / "docs" / target).exists(), target


def prepare_script(script: str, tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of a batch script, and an environment with fakes of SLURM's commands."""
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir(exist_ok=True)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (stand_ins / name).write_text(text)
        (stand_ins / name).chmod(0o755)
    path = os.pathsep.join([str(stand_ins), str(Path(sys.executable).parent), os.environ["PATH"]])
    modules = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PATH": path, "PYTHONPATH": modules, "OMP_NUM_THREADS": "1"}
    return ["bash", str(SCRIPTS / script)], environment


def run_script(script: str, words: list[str], tmp_path: Path, **environment: str) -> str:
    """Run a batch script with fakes of SLURM's commands."""
    command, variables = prepare_script(script, tmp_path)
    environment |= {"PATH": variables["PATH"]}
    return run_several([*command, *words], tmp_path, **environment)


@pytest.mark.slow
def test_array_jobs_share_the_runs_of_a_recipe(tmp_path):
    words = ["run", "photos", "--dry-run"]
    counts = {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "1"}
    parts = [
        run_script("array.sh", words, tmp_path, SLURM_ARRAY_TASK_ID=job, **counts).splitlines()
        for job in ("1", "2")
    ]
    assert not set(parts[0]) & set(parts[1])
    assert len(parts[0] + parts[1]) == len(find_experiment("photos").plan())


FILE = """
[experiment]
title = "long runs"
seeds = "0-1"
arms = ["plain"]
[data]
train_images = 320
test_images = 16
batch_size = 32
[model]
name = "small_models:make_tiny"
[schedule]
epochs = 40
[run]
device = "cpu"
checkpoint_seconds = 1e-6
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", ["array.sh", "nodes.sh"])
def test_a_job_whose_time_is_over_saves_its_run_and_queues_itself_again(script, tmp_path):
    """SLURM sends USR1 to the script before the time is over."""
    (tmp_path / "long.toml").write_text(FILE.replace("epochs = 40", "epochs = 4000"))
    slurm = {
        "SLURM_JOB_ID": str(find_job()), "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "2",
        "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1",
        "SLURM_GPUS_ON_NODE": "1", "PET_LOCAL_ADDR": "localhost",
    }  # fmt: skip
    command, environment = prepare_script(script, tmp_path)
    process = subprocess.Popen(
        [*command, "run", "long.toml", "--out", "out"],
        env=environment | slurm,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(6000):
            if list(tmp_path.rglob("checkpoint-*")) or process.poll() is not None:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        said, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (tmp_path / "scontrol.txt").read_text() == f"requeue {slurm['SLURM_JOB_ID']}\n", said
    assert process.returncode != 0
    assert "stopping once the run is saved" in said
    assert list(tmp_path.rglob("checkpoint-*"))
    assert not list(tmp_path.rglob("record.json"))


@pytest.mark.slow
def test_a_job_that_ends_in_time_does_not_queue_itself_again(tmp_path):
    (tmp_path / "short.toml").write_text(FILE.replace("epochs = 40", "epochs = 1"))
    slurm = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_CPUS_PER_TASK": "1"}
    printed = run_script("array.sh", ["run", "short.toml", "--out", "out"], tmp_path, **slurm)
    assert "2 runs complete" in printed
    assert not (tmp_path / "scontrol.txt").exists()
    with pytest.raises(AssertionError, match="unknown recipe"):  # nor one that fails
        run_script("array.sh", ["run", "nothing-here"], tmp_path, **slurm)
    assert not (tmp_path / "scontrol.txt").exists()


def find_job() -> int:
    """Return a job's number whose port is free."""
    for job in range(os.getpid(), os.getpid() + 1000):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("localhost", 20_000 + job % 10_000))
            return job
    raise AssertionError("no port is free")


def test_a_job_without_gpus_fails_with_a_hint(tmp_path):
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
    with pytest.raises(AssertionError, match="ask for GPUs, as with --gpus-per-node 8"):
        run_script("nodes.sh", ["ls"], tmp_path, **slurm)


@pytest.mark.slow
def test_the_ranks_of_a_job_share_a_run(tmp_path):
    words = ["run", "photos", "--smoke", "--arms", "tract-0.1", "--out", "out", "run.device=cpu"]
    slurm = {
        "SLURM_JOB_ID": str(find_job()),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_GPUS_ON_NODE": "2",
        "PET_LOCAL_ADDR": "localhost",  # this machine's name need not lead anywhere
    }
    run_script("nodes.sh", words, tmp_path, **slurm)
    (record,) = (tmp_path / "out").rglob("record.json")
    assert read_record(record)["environment"]["ranks"] == 2
