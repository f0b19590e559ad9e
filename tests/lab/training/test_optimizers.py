"""Optimizers: which parameters decay, what is clipped, and what is logged."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from lab_helpers import make_quick
from small_models import make_deep, make_tiny
from trainact.errors import TrActValueError
from trainact.lab.models.networks import build_network
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import OptimizerFields, ScheduleFields, TractFields
from trainact.lab.torchvision_import import import_torchvision
from trainact.lab.training.optimizers import (
    find_undecayed,
    make_optimizers,
    rate_at,
    set_rate,
)
from trainact.lab.training.train import train


def make_vit(drop_path=0.0):
    return build_network(
        "deit3-small", 5, image_size=16, width=24, depth=2, heads=3, patch_size=4,
        drop_path=drop_path,
    )  # fmt: skip


def test_vectors_tokens_and_positions_do_not_decay_where_the_recipe_says_so():
    network = make_vit()
    names = {id(p): name for name, p in network.named_parameters()}
    found = {names[id(p)] for p in find_undecayed(network)}
    assert {"cls_token", "pos_embed", "norm.weight", "head.bias", "blocks.0.ls1.gamma"} <= found
    assert not {"patch_embed.proj.weight", "head.weight", "blocks.1.mlp.fc1.weight"} & found
    fields = OptimizerFields(name="lamb", lr=1e-3, weight_decay=0.05, decay_vectors=False,
                             first_layer_lr=3.0)  # fmt: skip
    (optimizer,) = make_optimizers(network, ["patch_embed.proj"], fields)
    groups = optimizer.param_groups
    assert [(g["lr_scale"], g["weight_decay"]) for g in groups] == [
        (3.0, 0.05), (3.0, 0.0), (1.0, 0.05), (1.0, 0.0),
    ]  # fmt: skip
    assert sum(len(g["params"]) for g in groups) == len(list(network.parameters()))
    (usual,) = make_optimizers(network, ["patch_embed.proj"], OptimizerFields())
    assert [len(g["params"]) for g in usual.param_groups] == [2, len(names) - 2]


def test_eps_reaches_the_optimizer_and_0_is_its_own():
    network = nn.Linear(2, 2)
    for name in ("adam", "adamw", "lamb"):
        given = make_optimizers(network, [], OptimizerFields(name=name, eps=1e-3))[0]
        own = make_optimizers(network, [], OptimizerFields(name=name))[0]
        assert given.defaults["eps"] == 1e-3
        assert own.defaults["eps"] == (1e-6 if name == "lamb" else 1e-8)


@pytest.mark.parametrize("name", ["foof", "asgo", "muon"])
def test_the_first_layers_weight_has_its_own_optimizer_and_the_bias_stays(name):
    network = make_deep(5)
    fields = OptimizerFields(name="adam", lr=0.2, first_layer_name=name, first_layer_lr=0.5,
                             weight_decay=0.1, muon_momentum=0.8)  # fmt: skip
    own, rest = make_optimizers(network, ["0"], fields, TractFields(lam=0.03))
    assert [id(p) for g in own.param_groups for p in g["params"]] == [id(network[0].weight)]
    assert own.param_groups[0]["weight_decay"] == 0.1
    if name == "foof":
        assert own.param_groups[0]["lam"] == 0.03
    if name == "muon":
        assert own.param_groups[0]["momentum"] == 0.8
    assert isinstance(rest, torch.optim.Adam)
    assert [len(g["params"]) for g in rest.param_groups] == [1, len(list(network.parameters())) - 2]
    assert rest.param_groups[0]["params"][0] is network[0].bias
    set_rate([own, rest], 0.1)
    rates = [g["lr"] for optimizer in (own, rest) for g in optimizer.param_groups]
    assert rates == pytest.approx([0.05, 0.1, 0.1])


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_first_layers_own_sgd_has_the_momentum_of_the_recipe(nesterov):
    fields = OptimizerFields(name="adam", first_layer_name="sgd", momentum=0.7, nesterov=nesterov)
    own, _ = make_optimizers(make_tiny(5), ["0"], fields)
    [group] = own.param_groups
    assert (group["momentum"], group["nesterov"]) == (0.7, nesterov)


def test_a_muon_body_has_its_own_rate_and_the_rest_keeps_its_optimizer():
    network = make_deep(5)
    fields = OptimizerFields(name="adam", lr=0.01, body="muon", muon_lr=0.04, first_layer_lr=3.0)
    body, rest = make_optimizers(network, ["0"], fields)
    hidden = [p for g in body.param_groups for p in g["params"]]
    assert [id(p) for p in hidden] == [id(network[2].weight), id(network[8].weight)]
    set_rate([body, rest], 0.005)
    assert [g["lr"] for g in body.param_groups] == pytest.approx([0.02])
    assert [g["lr"] for g in rest.param_groups] == pytest.approx([0.015, 0.005])
    count = sum(len(g["params"]) for o in (body, rest) for g in o.param_groups)
    assert count == len(list(network.parameters()))
    with pytest.raises(TrActValueError, match=r"no matrix or convolution.*optimizer\.body=same"):
        make_optimizers(make_tiny(5), ["0"], fields)


def test_the_first_layer_the_body_and_the_rest_may_have_three_optimizers():
    network = make_deep(5)
    fields = OptimizerFields(name="adam", lr=0.01, body="muon", first_layer_name="asgo",
                             decay_vectors=False, weight_decay=0.1)  # fmt: skip
    optimizers = make_optimizers(network, ["0"], fields)
    assert [type(o).__name__ for o in optimizers] == ["Asgo", "Muon", "Adam"]
    ids = [id(p) for o in optimizers for g in o.param_groups for p in g["params"]]
    assert sorted(ids) == sorted(id(p) for p in network.parameters())


def test_without_a_trained_first_layer_there_is_no_optimizer_for_it():
    network = make_tiny(5)
    for parameter in network[0].parameters():
        parameter.requires_grad_(False)
    fields = OptimizerFields(name="adam", first_layer_name="sgd")
    (rest,) = make_optimizers(network, ["0"], fields)
    assert sum(len(g["params"]) for g in rest.param_groups) == 2


def test_lamb_does_not_clip_by_itself():
    optimizer = make_optimizers(nn.Linear(2, 2), [], OptimizerFields(name="lamb"))[0]
    assert optimizer.defaults["max_grad_norm"] is None


@pytest.mark.parametrize("name", ["sgd", "lamb"])
def test_the_norm_before_the_clip_is_logged(tmp_path, name):
    """One step: the same gradient, clipped or not; LAMB's step does not depend on its size."""
    base = {"optimizer__name": name, "schedule__epochs": 1, "data__train_images": 32,
            "optimizer__lr": 1e-3}  # fmt: skip
    free = train(make_quick(**base), tmp_path, lambda event: None)["epochs"][0]
    cut = train(make_quick(**base, optimizer__clip_norm=1e-3), tmp_path, lambda event: None)
    cut = cut["epochs"][0]
    assert cut["grad_norm"] == free["grad_norm"] > 1e-3
    assert math.isclose(cut["train_loss"], free["train_loss"])
    assert (cut["test_loss"] == free["test_loss"]) is False


def test_drop_path_has_the_same_rate_in_every_block_and_layer_scale_starts_at_1e_4():
    network = make_vit(drop_path=0.2)
    rates = [getattr(b, f"drop_path{i}").drop_prob for b in network.blocks for i in (1, 2)]
    assert rates == [0.2] * 4
    gammas = [p for name, p in network.named_parameters() if name.endswith("gamma")]
    assert len(gammas) == 4
    assert all(torch.equal(g, torch.full_like(g, 1e-4)) for g in gammas)
    assert isinstance(make_vit().blocks[0].drop_path1, nn.Identity)


def test_a_cosine_over_the_whole_run_hides_its_beginning_under_the_warm_up():
    """As timm's scheduler of DeiT: the rate jumps a little where the warm-up ends."""
    fields = ScheduleFields(epochs=400, warmup_epochs=5, warmup_from=1e-6, final_lr=1e-5,
                            cosine_over="run", per="epoch")  # fmt: skip
    assert rate_at(fields, 4e-3, 0, 10) == 1e-6
    expected = 1e-5 + (4e-3 - 1e-5) * (1 + math.cos(math.pi * 100 / 400)) / 2
    assert rate_at(fields, 4e-3, 1005, 10) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["vit", "vit-lambda", "vit-norms", "vit-ranges"])
def test_a_late_cosine_is_upstreams_two_schedulers_one_after_the_other(name):
    """The paper's vision transformer for CIFAR-10: as long as the run, begun after the warm-up."""
    fields = find_experiment(f"cifar10-{name}").plan()[0].schedule
    fields = dataclasses.replace(fields, epochs=100)
    assert (fields.cosine_over, fields.per) == ("late-run", "epoch")
    rates = [rate_at(fields, 1e-3, epoch * 391 + 7, 391) for epoch in range(100)]
    assert rates == pytest.approx(warm_up_then_anneal(100, 1e-3), rel=1e-9)
    assert rates[5] == rates[6] == 1e-3
    assert rates[-1] == pytest.approx(2.19e-5, abs=5e-8)


def warm_up_then_anneal(epochs, lr, warm_up=5):
    """Return the rates of an optimizer: epoch/warm_up of lr up to warm_up, then torch's cosine.

    The cosine's own count is 0 in the first epoch after the warm-up has ended.
    """
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs, eta_min=1e-5)
    rates = []
    for epoch in range(epochs):
        if epoch <= warm_up:
            rates.append(lr * epoch / warm_up)
            continue
        rates.append(cosine.get_last_lr()[0])
        optimizer.step()
        cosine.step()
    return rates


@pytest.mark.parametrize("over", ["rest", "run", "late-run"])
def test_a_cosine_stays_between_its_ends_at_every_step(over):
    fields = ScheduleFields(epochs=7, warmup_epochs=2.5, final_lr=1e-4, cosine_over=over)
    rates = [rate_at(fields, 0.1, step, 10) for step in range(25, 71)]
    assert all(1e-4 <= rate <= 0.1 for rate in rates)
    assert rates == sorted(rates, reverse=True)
    assert (rates[-1] == pytest.approx(1e-4)) == (over != "late-run")


def test_the_rates_of_deit_lag_one_epoch_behind_timms_schedule():
    """Upstream steps timm's scheduler with an epoch's number after that epoch."""
    import_torchvision()
    from timm.scheduler import CosineLRScheduler

    run = find_experiment("deit3-vit-b").plan()[0]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=run.optimizer.lr)
    scheduler = CosineLRScheduler(optimizer, t_initial=400, lr_min=1e-5, warmup_t=5,
                                  warmup_lr_init=1e-6)  # fmt: skip
    expected = []
    for epoch in range(400):
        expected.append(optimizer.param_groups[0]["lr"])
        scheduler.step(epoch)
    rates = [rate_at(run.schedule, run.optimizer.lr, epoch * 5 + 4, 5) for epoch in range(400)]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert rates[0] == rates[1] == 1e-6


@pytest.mark.parametrize(("epochs", "ends"), [(200, (59, 119, 159)), (133, (39, 79, 106))])
def test_the_36_networks_decay_at_the_epochs_of_upstreams_loop(epochs, ends):
    """It counts epochs from 1 and sets an epoch's rate before it: 59 epochs at the first rate."""
    plan = find_experiment("cifar100-table").plan()
    run = next(run for run in plan if run.schedule.epochs == epochs)
    rates = [rate_at(run.schedule, 0.1, epoch * 3, 3) for epoch in range(epochs)]
    assert rates[0] == 0
    levels = [0.1] * (ends[0] - 1)
    for level, start, end in zip((0.02, 0.004, 0.0008), ends, (*ends[1:], epochs), strict=True):
        levels += [level] * (end - start)
    assert rates[1:] == pytest.approx(levels)


def test_a_lag_delays_every_schedule():
    for fields in (
        ScheduleFields(epochs=9, warmup_epochs=2),
        ScheduleFields(epochs=9, name="steps", milestones=(3, 6)),
        ScheduleFields(epochs=9, per="epoch"),
    ):
        late = dataclasses.replace(fields, lag_epochs=2)
        rates = [rate_at(fields, 0.1, step, 4) for step in range(36)]
        assert [rate_at(late, 0.1, step, 4) for step in range(36)] == [rates[0]] * 8 + rates[:-8]


def test_schedules_follow_their_formulas():
    cosine = ScheduleFields(epochs=10, warmup_epochs=5, final_lr=1e-5, per="epoch")
    rates = [rate_at(cosine, 1e-3, epoch * 7 + 3, 7) for epoch in range(10)]
    assert rates[0] == 0
    assert rates[1] == pytest.approx(2e-4)
    assert rates[5] == pytest.approx(1e-3)
    assert rates[9] > 1e-5
    steps = ScheduleFields(epochs=200, name="steps", milestones=(60, 120, 160), decay=0.2,
                           warmup_epochs=1)  # fmt: skip
    at = {epoch: rate_at(steps, 0.1, int(epoch * 10), 10) for epoch in (0, 0.5, 1, 60, 120, 199)}
    assert at[0] == 0
    assert at[0.5] == pytest.approx(0.05)
    assert (at[1], at[60], at[120]) == pytest.approx((0.1, 0.02, 0.004))
    assert at[199] == pytest.approx(0.0008)
    assert rate_at(ScheduleFields(name="constant"), 0.3, 99, 3) == 0.3


def test_a_triangle_is_linear_up_to_its_peak_and_down_to_the_end():
    fields = ScheduleFields(epochs=10, name="triangle")
    rates = [rate_at(fields, 11.5, step, 50) for step in range(501)]
    known = {0: 0.2, 115: 1.0, 500: 0.07}
    assert {step: rates[step] / 11.5 for step in known} == pytest.approx(known)
    slopes = [after - before for before, after in itertools.pairwise(rates)]
    assert slopes[:115] == pytest.approx([11.5 * 0.8 / 115] * 115)
    assert slopes[115:] == pytest.approx([-11.5 * 0.93 / 385] * 385)
    own = ScheduleFields(epochs=4, name="triangle", triangle_start=0.5, triangle_peak=0.5,
                         triangle_end=0.0, per="epoch")  # fmt: skip
    assert [rate_at(own, 1.0, step, 3) for step in (0, 2, 3, 6, 9, 12)] == pytest.approx(
        [0.5, 0.5, 0.75, 1.0, 0.5, 0.0]
    )
