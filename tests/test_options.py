"""The options: accepted values, and the message for every other value."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from trainact import TrAct, TrActError, TrActLinear, apply_tract, precondition_grad
from trainact.options import choose_precision

BAD_LAMS = [
    (0, ValueError, "lam=0 is out of range"),
    (-0.1, ValueError, "lam=-0.1 is out of range"),
    (float("nan"), ValueError, "lam=nan is out of range"),
    (float("inf"), ValueError, "lam=inf is out of range"),
    (10**400, ValueError, "is out of range"),
    (True, TypeError, "lam=True is a bool"),
    ("0.1", TypeError, "lam='0.1' is a str"),
    (None, TypeError, "lam=None is a NoneType"),
    (torch.tensor(0.1), TypeError, r"lam=tensor\(0.1000\) is a Tensor"),
    (1 + 0j, TypeError, "is a complex"),
]
bad_lams = pytest.mark.parametrize(("lam", "kind", "message"), BAD_LAMS)


@bad_lams
def test_a_bad_lam_is_refused_by_every_function(lam, kind, message):
    layer = nn.Linear(4, 3)
    weight, x = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    for attempt in (
        lambda: TrAct(layer, lam),
        lambda: apply_tract(layer, lam),
        lambda: TrActLinear(4, 3, lam=lam),
        lambda: precondition_grad(weight, x, lam),
    ):
        with pytest.raises(TrActError, match=message) as caught:
            attempt()
        assert isinstance(caught.value, kind)
        assert "use a positive finite number; 0.1 is the paper's default" in str(caught.value)
    assert type(layer) is nn.Linear


@bad_lams
def test_a_bad_lam_is_refused_at_the_assignment_and_the_old_one_stays(lam, kind, message):
    layer = TrAct(nn.Linear(4, 3), lam=0.2)
    with pytest.raises(kind, match=message):
        layer.lam = lam
    assert layer.lam == 0.2


@pytest.mark.parametrize("lam", [1, 0.5, np.float32(0.5), np.int64(2), Fraction(1, 2)])
def test_every_real_number_becomes_a_float(lam):
    layer = TrAct(nn.Linear(4, 3), lam=lam)
    assert type(layer.lam) is float
    assert layer.lam == lam


@pytest.mark.parametrize(
    ("moment_dtype", "kind"),
    [(torch.float16, ValueError), (torch.int64, ValueError), ("float64", TypeError)],
)
def test_a_moment_dtype_narrower_than_float32_is_refused(moment_dtype, kind):
    layer = nn.Linear(4, 3)
    with pytest.raises(TrActError, match=r"use torch\.float32, torch\.float64") as caught:
        TrAct(layer, moment_dtype=moment_dtype)
    assert isinstance(caught.value, kind)
    assert type(layer) is nn.Linear


@pytest.mark.parametrize("name", ["every", "rows"])
@pytest.mark.parametrize(
    ("value", "kind"), [(0, ValueError), (-3, ValueError), (True, TypeError), (2.0, TypeError)]
)
def test_a_bad_count_is_refused(name, value, kind):
    layer = nn.Linear(4, 3)
    with pytest.raises(TrActError, match=f"{name}={value!r} .*; use a whole number") as caught:
        apply_tract(layer, **{name: value})
    assert isinstance(caught.value, kind)
    assert type(layer) is nn.Linear


@pytest.mark.parametrize("name", ["sync", "relative"])
def test_switches_are_bools(name):
    with pytest.raises(TrActError, match=f"{name}='ddp' is not accepted; use True or False"):
        TrAct(nn.Linear(4, 3), **{name: "ddp"})


@pytest.mark.parametrize(
    ("center", "kind"), [("layernorm", ValueError), (1, TypeError), (None, TypeError)]
)
def test_a_bad_center_is_refused(center, kind):
    layer = nn.Linear(4, 3)
    weight, x = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    for attempt in (
        lambda: apply_tract(layer, center=center),
        lambda: TrActLinear(4, 3, center=center),
        lambda: precondition_grad(weight, x, center=center),
    ):
        with pytest.raises(TrActError, match=r"use True .*'batchnorm' .*, or False") as caught:
            attempt()
        assert isinstance(caught.value, kind)
    assert type(layer) is nn.Linear


@pytest.mark.parametrize(
    ("decay", "kind"),
    [
        (1, ValueError),
        (-0.1, ValueError),
        (float("nan"), ValueError),
        (10**400, ValueError),
        (True, TypeError),
        ("0.9", TypeError),
        (None, TypeError),
    ],
)
def test_a_bad_moment_decay_is_refused(decay, kind):
    layer = nn.Linear(4, 3)
    with pytest.raises(TrActError, match=r"use a number from 0 .* to below 1") as caught:
        TrAct(layer, moment_decay=decay)
    assert isinstance(caught.value, kind)
    assert type(layer) is nn.Linear


def test_a_moving_average_excludes_every():
    with pytest.raises(TrActError, match=r"every=4 and moment_decay=0\.9 exclude each other"):
        TrAct(nn.Linear(4, 3), every=4, moment_decay=0.9)
    assert TrAct(nn.Linear(4, 3), every=4, moment_decay=0).options.moment_decay == 0.0


def test_options_other_than_the_defaults_are_shown():
    assert repr(TrAct(nn.Linear(4, 3), every=4, rows=99)).endswith("lam=0.1, every=4, rows=99)")
    assert repr(TrAct(nn.Linear(4, 3), sync=True)).endswith("lam=0.1, sync=True)")
    shown = repr(TrAct(nn.Linear(4, 3), center=True, relative=True, moment_decay=0.9))
    assert shown.endswith("lam=0.1, center=True, relative=True, moment_decay=0.9)")


@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "expected"),
    [
        (500, 48, (torch.float32, torch.float64)),
        (500, 256, (torch.float32, torch.float32)),  # wide
        (47, 48, (torch.float64, torch.float64)),  # fewer rows than columns
        (500, 768, (torch.float64, torch.float64)),
        (None, 48, (torch.float32, torch.float64)),
    ],
)
def test_few_rows_are_computed_in_float64_and_wide_sums_in_float32(num_rows, num_inputs, expected):
    device = torch.device("cpu")
    assert choose_precision(None, torch.float32, device, num_rows, num_inputs) == expected
    without_float64 = choose_precision(
        None, torch.float32, torch.device("mps"), num_rows, num_inputs
    )
    assert without_float64 == (torch.float32, torch.float32)
