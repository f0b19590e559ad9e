"""The rows of first layers: pooled over a step, in full precision, and nothing else."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases import assert_close
from trainact.errors import UnsupportedLayerError
from trainact.lab.training.first_layer import row_moments
from trainact.lab.training.first_layer.row_moments import (
    RowMoments,
    find_layers,
    measure_rows,
    visit_inputs,
)
from trainact.reference import cut_patches


def make_network(dtype=torch.float64):
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, stride=2, padding=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3)
    ).to(dtype)


def watch(network, dtype=None, reduce=torch.clone):
    return RowMoments(find_layers(network, ["0"], "rule", needs_rows=True), dtype, reduce)


def compute(layer, x):
    rows = cut_patches(x, layer)
    return rows.mT @ rows / rows.shape[1]


def test_the_rows_of_all_micro_batches_are_pooled_and_evaluation_adds_none(cifar_images):
    network, images = make_network(), cifar_images / 64 - 2
    rows = watch(network)
    for part in images.split([5, 20, 7]):
        network(part).sum().backward()
    network.eval()
    network(images * 3).sum().backward()
    network.train()
    with torch.no_grad():
        network(images * 5)
    network(images * 7)  # no backward follows
    taken = rows.take()[network[0].weight]
    assert int(taken.num_rows) == 32 * 16 * 16
    assert_close(taken.divide_by_rows(), compute(network[0], images))
    assert int(rows.take()[network[0].weight].num_rows) == 0


def test_layers_that_share_a_weight_share_their_rows(cifar_images):
    network = make_network()
    network.append(copy.copy(network[0]))  # the same weight
    rows = RowMoments([network[0], network[4]], None, torch.clone)
    (network[0](cifar_images[:8]).sum() + network[4](cifar_images[8:]).sum()).backward()
    [moment] = rows.take().values()
    assert_close(moment.divide_by_rows(), compute(network[0], cifar_images))


def test_the_sum_over_ranks_has_the_rows_of_all(cifar_images):
    network = make_network()
    rows = watch(network, reduce=lambda tensor: 3 * tensor)  # three ranks with equal images
    network(cifar_images[:4]).sum().backward()
    moment = rows.take()[network[0].weight]
    assert int(moment.num_rows) == 3 * 4 * 16 * 16
    assert_close(moment.divide_by_rows(), compute(network[0], cifar_images[:4]))


def test_autocast_does_not_round_the_second_moment(cifar_images):
    network = make_network(torch.float32)
    rows = watch(network)
    with torch.autocast("cpu", torch.bfloat16):
        network(cifar_images.float()).sum().backward()
    moment = rows.take()[network[0].weight].divide_by_rows()
    assert moment.dtype == torch.float64
    assert_close(moment, compute(network[0], cifar_images), rtol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_adds_its_rows_once(cifar_images, reentrant):
    network, images = make_network(), cifar_images.clone().requires_grad_()
    rows = watch(network)
    checkpoint(network, images, use_reentrant=reentrant).sum().backward()
    assert int(rows.take()[network[0].weight].num_rows) == 32 * 16 * 16


def test_several_forward_passes_before_one_backward_all_count(cifar_images):
    network = make_network()
    rows = watch(network)
    sum(network(part).sum() for part in cifar_images.split(20)).backward()
    moment = rows.take()[network[0].weight]
    assert_close(moment.divide_by_rows(), compute(network[0], cifar_images))


def test_a_forward_pass_without_backward_keeps_no_memory(cifar_images, monkeypatch):
    network, measured = make_network(), []
    rows = watch(network)

    def measure(*args):
        moment = measure_rows(*args)
        measured.append(weakref.ref(moment.total))
        return moment

    monkeypatch.setattr(row_moments, "measure_rows", measure)
    output = network(cifar_images)
    assert [moment() is None for moment in measured] == [False]
    del output
    gc.collect()
    assert [moment() is None for moment in measured] == [True]
    assert int(rows.take()[network[0].weight].num_rows) == 0


class Standardised(nn.Conv2d):
    """A convolution whose forward multiplies by another weight than its parameter."""

    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


def test_layers_with_other_rows_or_weights_are_refused():
    network = nn.Sequential(
        Standardised(3, 4, 3), nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3))
    )
    assert find_layers(network, ["0"], "rule='mac'") == [network[0]]
    with pytest.raises(UnsupportedLayerError, match=r"'0': Standardised has .* rule='mac' takes"):
        find_layers(network, ["0"], "rule='mac'", needs_rows=True)
    for name, message in (("1", "rule='mac' takes .*got ReLU"), ("2", "a parametrised weight")):
        with pytest.raises(UnsupportedLayerError, match=f"layer '{name}': .*{message}"):
            find_layers(network, [name], "rule='mac'")


def test_inputs_are_visited_in_eval_mode_and_the_rest_is_not_run(cifar_images):
    network = make_network()
    seen, modes = [], []
    network[3].register_forward_pre_hook(lambda *_: pytest.fail("the rest was run"))

    def visit(layer, x):
        seen.append(x)
        modes.append(layer.training)

    visit_inputs(network, [network[0]], cifar_images.split(20), visit)
    assert torch.equal(torch.cat(seen), cifar_images)
    assert modes == [False, False]
    assert all(module.training for module in network.modules())
    assert int(network[1].num_batches_tracked) == 0
    assert not network[0]._forward_pre_hooks


def test_every_one_of_several_first_layers_is_visited(cifar_images):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(3, 2, 3).double() for _ in range(3))

        def forward(self, x):
            return self.c(self.a(x)) + self.b(input=x)

    network, seen = Two(), []
    network.c = nn.Conv2d(2, 2, 1).double()
    visit_inputs(
        network, [network.a, network.b], cifar_images.split(16), lambda layer, x: seen.append(layer)
    )
    assert seen == [network.a, network.b] * 2
