"""Faster R-CNN: its parts, its weights, TrAct in its first layer, and whole runs."""

import os
import re
import sys

import pytest
import safetensors.torch
import torch
from torch.utils.flop_counter import FlopCounterMode

from lab_helpers import (
    HERE,
    InterruptedRunError,
    ignore,
    run_several,
    stop_after,
    without_times,
)
from result_folders import find_records
from trainact import apply_tract, remove_tract
from trainact.errors import TrActError, TrActValueError
from trainact.lab.analysis.answers import answer
from trainact.lab.commands.cli import main
from trainact.lab.commands.tune import plan_tuning
from trainact.lab.cost.multiply_adds import count_detector
from trainact.lab.data import DataError, load_data
from trainact.lab.data.images import Standard
from trainact.lab.data.objects import Objects
from trainact.lab.models.detection.faster_rcnn import VggBackbone, make_faster_rcnn
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import write_recipe
from trainact.lab.records.record import RunFolder, read_record
from trainact.lab.report.comparison_report import write_comparison
from trainact.lab.torchvision_import import import_torchvision
from trainact.lab.training import train as train_module
from trainact.lab.training.batches import Place
from trainact.lab.training.detection.average_precision import Detections, average_over_classes
from trainact.lab.training.detection.scenes import DetectionBatches
from trainact.lab.training.train import train
from voc_cases import SMALL, make_small, make_voc

STANDARD = Standard((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
ARGUMENTS = SMALL["model.arguments"]


def build(**changes):
    torch.manual_seed(0)
    return make_faster_rcnn(20, 48, STANDARD, ARGUMENTS | changes)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """One batch of four small scenes, as a detector takes it."""
    folder = tmp_path_factory.mktemp("voc")
    make_voc(folder)
    fields = make_small(folder, data__batch_size=4, data__flip=False).data
    batches = DetectionBatches(load_data(fields).train, fields, 0, Place(0, 1, torch.device("cpu")))
    return next(batches.read(0, 0))[0]


def measure(network, share, seed=0):
    """Return the loss, with its random choices of anchors and regions fixed."""
    torch.manual_seed(seed)
    return torch.stack(list(network(share.images, share.targets).values())).sum()


# the network


def test_the_work_of_a_detector_is_estimated_without_running_it():
    network, counter = build(test_proposals=[200, 100]).eval(), FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        network([torch.rand(3, 48, 64)])
    train_work, work = count_detector(ARGUMENTS | {"test_proposals": [200, 100]}, 20, 48)
    # fewer regions remain than are allowed; compiled operators are not counted
    assert work == pytest.approx(counter.get_total_flops() / 2, rel=0.15)
    assert train_work != work


def test_the_backbone_is_the_vgg16_of_torchvision():
    """Names and shapes of all thirteen convolutions; one value for sixteen pixels."""
    import_torchvision()
    from torchvision.models import vgg16

    with torch.device("meta"):
        theirs = vgg16().features.state_dict()
        backbone = VggBackbone()
    mine = backbone.state_dict()
    assert {key: value.shape for key, value in mine.items()} == {
        key: value.shape for key, value in theirs.items()
    }
    assert len(mine) == 26
    assert backbone.out_channels == 512
    assert VggBackbone(8)(torch.zeros(1, 3, 96, 64)).shape == (1, 64, 6, 4)


def test_the_published_detector_has_its_anchors_head_and_regions():
    with torch.device("meta"):
        network = make_faster_rcnn(20, 600, STANDARD, {"weights": "none"})
    assert network.rpn.anchor_generator.sizes == ((128, 256, 512),)
    assert network.rpn.anchor_generator.num_anchors_per_location() == [9]
    assert (network.transform.min_size, network.transform.max_size) == ((600,), 1000)
    assert network.roi_heads.box_head[1].weight.shape == (4096, 512 * 7 * 7)
    assert network.roi_heads.box_head[4].weight.shape == (4096, 4096)
    assert network.roi_heads.box_roi_pool.output_size == (7, 7)
    assert network.roi_heads.box_predictor.cls_score.out_features == 21
    assert network.roi_heads.box_predictor.bbox_pred.out_features == 84


def test_every_layer_of_the_backbone_is_trained(scenes):
    network = build()
    measure(network, scenes).backward()
    parameters = dict(network.named_parameters())
    assert all(parameter.requires_grad for parameter in parameters.values())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in parameters.values())


def test_tract_changes_the_gradient_of_the_first_convolution_and_of_nothing_else(scenes):
    network = build(dropout=0.0)
    results = []
    for lam in (None, 0.1):
        if lam is not None:
            apply_tract(network, lam, layers=["backbone.0"])
        network.zero_grad()
        loss = measure(network, scenes)
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
        results.append((loss.detach(), gradients))
    remove_tract(network)
    assert torch.equal(results[0][0], results[1][0])
    changed = [
        name for name, value in results[0][1].items() if not torch.equal(value, results[1][1][name])
    ]
    assert changed == ["backbone.0.weight"]


@pytest.mark.slow
@pytest.mark.parametrize("enabled", [False, True], ids=["plain", "tract"])
def test_the_loss_on_a_fixed_batch_falls_and_its_objects_are_found(scenes, enabled):
    network = build(dropout=0.0)
    if enabled:
        apply_tract(network, layers=["backbone.0"])
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    losses = []
    for step in range(80 if enabled else 40):
        loss = measure(network, scenes, seed=step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    if enabled:
        assert find_objects(network, scenes) > 0.5


def find_objects(network, share):
    """Return the mean average precision on the batch itself."""
    network.eval()
    with torch.no_grad():
        outputs = network(share.images)
    found = [Detections(out["boxes"], out["labels"] - 1, out["scores"]) for out in outputs]
    true = [
        Objects(target["boxes"], target["labels"] - 1, torch.zeros(len(target["labels"])).bool())
        for target in share.targets
    ]
    return average_over_classes(found, true, 20, "11-point")


# weights


def make_weights(width=8, hidden=32, classifier=True):
    """Return random weights under torchvision's names."""
    generator = torch.Generator().manual_seed(1)
    shapes = {f"features.{k}": v.shape for k, v in VggBackbone(width).state_dict().items()}
    if classifier:
        shapes |= {"classifier.0.weight": (hidden, 8 * width * 49), "classifier.0.bias": (hidden,)}
        shapes |= {"classifier.3.weight": (hidden, hidden), "classifier.3.bias": (hidden,)}
        shapes |= {"classifier.6.weight": (1000, hidden), "classifier.6.bias": (1000,)}
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


@pytest.mark.parametrize("name", ["vgg.safetensors", "vgg.pth"])
@pytest.mark.parametrize("classifier", [True, False])
def test_weights_come_from_a_file(tmp_path, name, classifier):
    weights, path = make_weights(classifier=classifier), tmp_path / name
    if name.endswith("pth"):
        torch.save(weights, path)
    else:
        safetensors.torch.save_file(weights, path)
    network = build(weights=str(path))
    assert torch.equal(network.backbone[0].weight, weights["features.0.weight"])
    assert torch.equal(network.backbone[28].bias, weights["features.28.bias"])
    if classifier:
        head = network.roi_heads.box_head
        assert torch.equal(head[1].weight, weights["classifier.0.weight"])
        assert torch.equal(head[4].bias, weights["classifier.3.bias"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file of weights"),
        (b"", "cannot be read as weights"),
        (b"not a file of tensors", "cannot be read as weights"),
        (make_weights(width=16), "features.0.weight of"),
        ({"conv.weight": torch.zeros(1)}, "lacks features.0.weight, which torchvision's vgg16 has"),
        ([torch.zeros(1)], "does not hold named tensors"),
    ],
    ids=["missing", "empty", "text", "wide", "other", "list"],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, content, message):
    path = tmp_path / "vgg.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(DataError, match=re.escape(message)):
        build(weights=str(path))


def test_a_finished_run_is_not_given_back_for_another_file_of_weights(voc, tmp_path):
    path = tmp_path / "vgg.safetensors"
    safetensors.torch.save_file(make_weights(classifier=False), path)
    arguments = SMALL["model.arguments"] | {"weights": str(path)}
    recipe = make_small(voc, schedule__epochs=1, model__arguments=arguments)
    record = train(recipe, tmp_path, ignore)
    assert list(record["model"]["weights"]["missing"]) == ["box_head"]
    assert train(recipe, tmp_path, ignore)["seconds"] == record["seconds"]
    safetensors.torch.save_file({k: v + 1 for k, v in make_weights().items()}, path)
    with pytest.raises(TrActValueError, match="does not hold the weights that this run started"):
        train(recipe, tmp_path, ignore)
    path.unlink()
    assert train(recipe, tmp_path, ignore)["seconds"] == record["seconds"]


def test_a_file_of_weights_runs_no_code(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save({"features.0.weight": Harm()}, tmp_path / "vgg.pth")
    with pytest.raises(DataError, match="cannot be read as weights"):
        build(weights=str(tmp_path / "vgg.pth"))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": ""}, "give a file of torchvision's vgg16 weights"),
        ({"widht": 8}, "did you mean 'width'"),
        ({"width": 0}, "model.arguments.width must be positive; got 0"),
        ({"anchors": []}, "model.arguments.anchors must be positive"),
        ({"train_proposals": [5]}, "train_proposals takes two numbers"),
        ({"dropout": 1.0}, r"model.arguments.dropout is in \[0, 1\); got 1.0"),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    with pytest.raises(TrActError, match=message):
        build(**changes)


# runs


@pytest.mark.slow
def test_a_pair_on_real_images_comes_out_as_records_and_a_comparison(
    real_samples, tmp_path, capsys
):
    """The command that the documentation gives."""
    folder = str(real_samples / "voc2007")
    arguments = ["run", "detection-voc2007", "--smoke", "--data.folder", folder]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "2 runs complete, 0 diverged, 0 failed" in printed.out
    assert "mAP (11-point)" in printed.err
    plain, tract = find_records(tmp_path)
    assert [plain["arm"], tract["arm"]] == ["plain", "tract-0.1"]
    assert plain["model"]["first_layers"] == ["backbone.0"]
    assert plain["model"]["initial_weights"] == tract["model"]["initial_weights"]
    assert plain["order"] == tract["order"]
    assert plain["data"]["name"] == "voc2007"
    last = tract["epochs"][-1]
    assert {"train_loss", "map", "map_all", "test_seen", "first_layer_grad_norm"} <= set(last)
    assert "train_correct" not in last
    assert (last["train_seen"], last["test_seen"]) == (40, 20)
    assert plain["epochs"][-1]["train_loss"] != last["train_loss"]
    answers = answer([plain, tract])
    assert answers.runs[0].metric == "mAP (11-point)"
    assert answers.runs[1].accuracy == 100 * last["map"]
    written = write_comparison([plain, tract], tmp_path / "page", "trainact run detection-voc2007")
    page = (written.folder / "comparison.md").read_text()
    assert "Accuracy means mAP (11-point) on this page, in per cent." in page


@pytest.fixture(scope="module")
def voc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_voc(folder)
    return folder


@pytest.mark.parametrize(
    "changes",
    [{}, {"run__accumulation": 2, "run__ema": 0.5, "tract__enabled": False}],
    ids=["tract", "plain-accumulation-ema"],
)
@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_numbers(voc, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(train_module, "REPORT_EVERY", 1)
    recipe = make_small(voc, **changes)
    whole = train(recipe, tmp_path / "whole", ignore)
    for looks in ([2], [3]):
        with pytest.raises(InterruptedRunError):
            train(recipe, tmp_path / "parts", stop_after(looks))
    resumed = train(recipe, tmp_path / "parts", ignore)
    assert resumed["sessions"] == 3
    assert without_times(resumed) == without_times(whole)
    assert ("ema_map" in whole["epochs"][0]) == ("run__ema" in changes)
    weights = [
        safetensors.torch.load_file(RunFolder(tmp_path / part, recipe).weights_path)
        for part in ("whole", "parts")
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_loss_that_is_no_number_ends_the_run_and_is_recorded(voc, tmp_path):
    record = train(make_small(voc, optimizer__lr=1e12), tmp_path, ignore)
    assert record["status"] == "diverged"
    assert "the loss became" in record["failure"]


def test_data_that_changed_since_the_run_began_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(train_module, "REPORT_EVERY", 1)
    root = make_voc(tmp_path / "voc")
    recipe = make_small(tmp_path / "voc")
    with pytest.raises(InterruptedRunError):
        train(recipe, tmp_path, stop_after([2]))
    file = root / "Annotations" / "000000.xml"
    file.write_text(file.read_text().replace("dog", "cat"))
    with pytest.raises(DataError, match="voc2007 is not the data set that this run started with"):
        train(recipe, tmp_path, ignore)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__crop": "pad"}, "data.crop must be 'none' in detection; got 'pad'"),
        ({"model__name": "lab:vgg16"}, "model.name must be 'lab:faster-rcnn-vgg16' in detection"),
        ({"model__weights": "a.pth"}, "model.weights must be '' in detection; got 'a.pth'"),
        ({"model__pretraining": "tract"}, "model.pretraining must be '' in detection"),
        ({"data__crop_fill": "reflect"}, "data.crop_fill must be 'black' in detection"),
        ({"data__interpolation": "bicubic"}, "data.interpolation must be 'bilinear' in detection"),
        ({"data__test_crop": 0.9}, "data.test_crop must be 0.0 in detection; got 0.9"),
        ({"run__compile": True}, "run.compile must be False in detection; got True"),
        ({"optimizer__body": "muon"}, "optimizer.body must be 'same' in detection; got 'muon'"),
        (
            {"tract__enabled": False, "optimizer__first_layer_rule": "mac"},
            "optimizer.first_layer_rule must be 'none' in detection; got 'mac'",
        ),
        ({"optimizer__label_smoothing": 0.1}, "optimizer.label_smoothing must be 0.0"),
        ({"data__image_size": 0}, "data.image_size is 0: set it to the pixels of the short side"),
        ({"data__mean": [], "data__std": []}, "detection needs data.mean and data.std"),
        ({"model__start": "eigen"}, "model.start='eigen' does not apply to detection"),
    ],
)
def test_a_recipe_that_detection_cannot_follow_is_refused(voc, tmp_path, changes, message):
    with pytest.raises(TrActValueError, match=re.escape(message)):
        train(make_small(voc, **changes), tmp_path, ignore)


def test_the_recipe_is_the_paper_where_it_speaks_and_says_what_it_chose():
    experiment = find_experiment("detection-voc2007")
    assert [arm.name for arm in experiment.arms] == ["plain", "tract-0.1"]
    assert len(experiment.seeds) == 2
    for chosen in ("600", "0.001", "momentum 0.9", "0.0005", "14 epochs", "one image a step"):
        assert chosen in experiment.note.replace("\n", " ")
    recipe = experiment.recipe
    assert (recipe.data.image_size, recipe.data.batch_size, recipe.schedule.epochs) == (600, 1, 14)
    tuned = plan_tuning(experiment, 14, {"optimizer.lr": 0.002})
    assert all(not run.tract.enabled and run.data.evaluate_on == "held-out" for run in tuned)


@pytest.mark.slow
def test_two_ranks_keep_the_global_batch(voc, tmp_path):
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("needs torch.distributed with gloo")
    recipe = make_small(voc, schedule__epochs=1)
    write_recipe(recipe, tmp_path / "recipe.toml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(HERE / "rank_worker.py"), str(tmp_path)]
    run_several(command)
    two = read_record(RunFolder(tmp_path / "several", recipe).record_path)
    one = train(recipe, tmp_path, ignore)
    assert (one["environment"]["ranks"], two["environment"]["ranks"]) == (1, 2)
    assert one["order"] == two["order"]
    assert one["model"]["initial_weights"] == two["model"]["initial_weights"]
    for a, b in zip(one["epochs"], two["epochs"], strict=True):
        assert (a["train_seen"], a["test_seen"]) == (b["train_seen"], b["test_seen"]) == (6, 3)
