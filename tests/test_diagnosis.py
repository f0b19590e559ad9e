"""diagnose: the numbers of the paper's Figure 1."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainact import TrAct, TrActError, diagnose
from trainact.reference import tract_gradient, tract_gradients_of_layer
from trainact.rows import patches_of_layer, unfold_rows


def test_tokens_of_a_dictionary_train_their_pre_activations_already():
    """Figure 1, left: with one-hot rows, each token once, the plain step of z is ∇z itself."""
    layer, x, grad_z = nn.Linear(4, 3, bias=False), torch.eye(4), torch.randn(4, 3)
    diagnosis = diagnose(layer, x, grad_z)
    assert diagnosis.cosine_plain == pytest.approx(1)
    assert diagnosis.cosine_tract == pytest.approx(1)


def test_the_numbers_are_those_of_their_definitions():
    layer = TrAct(nn.Linear(6, 3), lam=0.3)
    x, grad_z = torch.randn(40, 6) @ torch.randn(6, 6), torch.randn(40, 3)
    diagnosis = diagnose(layer, x, grad_z)
    x, grad_z = x.double(), grad_z.double()
    wanted = 40 * grad_z
    plain = grad_z.T @ x
    tract = tract_gradient(grad_z, x, 0.3)
    for name, gradient in (("plain", plain), ("tract", tract)):
        given = x @ gradient.T
        cosine = torch.cosine_similarity(given.flatten(), wanted.flatten(), dim=0).item()
        assert getattr(diagnosis, f"cosine_{name}") == pytest.approx(cosine)
        distance = ((given - wanted).norm() / wanted.norm()).item()
        assert getattr(diagnosis, f"distance_{name}") == pytest.approx(distance)
    values = torch.linalg.eigvalsh(x.T @ x / 40)
    assert diagnosis.lam == 0.3
    assert (diagnosis.num_rows, diagnosis.num_inputs) == (40, 6)
    assert diagnosis.smallest_eigenvalue == pytest.approx(values[0].item())
    assert diagnosis.largest_eigenvalue == pytest.approx(values[-1].item())
    condition = (values[-1] + 0.3) / (values[0] + 0.3)
    assert diagnosis.condition_number == pytest.approx(condition.item())
    assert diagnosis.grad_norm_ratio == pytest.approx((tract.norm() / plain.norm()).item())
    assert diagnosis.effective_inputs == pytest.approx((values / (values + 0.3)).sum().item())


@pytest.mark.parametrize("center", [False, True, "batchnorm"])
@pytest.mark.parametrize("relative", [False, True])
def test_the_options_of_the_layer_count(center, relative):
    layer = TrAct(nn.Conv2d(4, 6, 3, groups=2).double(), 0.3, center=center, relative=relative)
    x, grad_z = 7 * torch.randn(5, 4, 8, 8).double() + 3, torch.randn(5, 6, 6, 6).double()
    if center == "batchnorm":
        grad_z -= grad_z.mean((0, 2, 3), keepdim=True)
    diagnosis = diagnose(layer, x, grad_z)
    plain = nn.grad.conv2d_weight(x, layer.weight.shape, grad_z, groups=2)
    by_bias = grad_z.sum((0, 2, 3))
    options = {"center": center, "relative": relative}
    tract = tract_gradients_of_layer(layer, x, grad_z, 0.3, **options)
    for name, (weight, bias) in {"plain": (plain, by_bias), "tract": tract}.items():
        step = nn.functional.conv2d(x, weight, bias if center is True else None, groups=2)
        if center == "batchnorm":
            step = step - step.mean((0, 2, 3), keepdim=True)
        wanted = 180 * grad_z
        distance = ((step - wanted).norm() / wanted.norm()).item()
        assert getattr(diagnosis, f"distance_{name}") == pytest.approx(distance)
    assert diagnosis.grad_norm_ratio == pytest.approx((tract[0].norm() / plain.norm()).item())
    values = []
    for group in unfold_rows(x, patches_of_layer(layer)):
        matrix = group - group.mean(0) if center else group
        found = torch.linalg.eigvalsh(matrix.T @ matrix / 180)
        values.append((found, 0.3 * found.mean() if relative else 0.3))
    directions = sum((found / (found + damping)).sum() for found, damping in values) / 2
    assert diagnosis.effective_inputs == pytest.approx(directions.item())
    condition = max((found[-1] + damping) / (found[0] + damping) for found, damping in values)
    assert diagnosis.condition_number == pytest.approx(condition.item())
    assert ("(relative:" in diagnosis.advice) == relative


def test_on_real_images_tract_is_nearer_to_the_wanted_step(cifar_images):
    layer = nn.Conv2d(3, 16, 3, padding=1)
    x = (cifar_images / 255 - 0.47) / 0.25
    grad_z = torch.randn(32, 16, 32, 32)
    diagnosis = diagnose(layer, x, grad_z)
    assert diagnosis.cosine_tract > 1.5 * diagnosis.cosine_plain
    assert diagnosis.distance_tract < 1 < diagnosis.distance_plain
    assert diagnosis.largest_eigenvalue / diagnosis.smallest_eigenvalue > 1000


def test_groups_are_layers_of_their_own():
    layer = nn.Conv2d(4, 6, 3, groups=2, bias=False)
    x, grad_z = torch.randn(5, 4, 8, 8), torch.randn(5, 6, 6, 6)
    both = diagnose(layer, x, grad_z)
    halves = [
        diagnose(nn.Conv2d(2, 3, 3), half, grad)
        for half, grad in zip(x.chunk(2, 1), grad_z.chunk(2, 1), strict=True)
    ]
    assert both.largest_eigenvalue == pytest.approx(max(d.largest_eigenvalue for d in halves))
    assert both.effective_inputs == pytest.approx(sum(d.effective_inputs for d in halves) / 2)


@pytest.mark.parametrize(
    ("scale", "lam", "advice"),
    [
        (0.01, 0.1, "lam 0.1 exceeds every eigenvalue: TrAct is close to plain training"),
        (1000.0, 0.1, "too large for float32: standardise the input, or use moment_dtype"),
        (1.0, 0.1, "lam 0.1 lies below the largest eigenvalue"),
    ],
)
def test_the_advice_follows_from_the_eigenvalues(scale, lam, advice):
    x = scale * torch.randn(500, 48)
    x[:, 1] = x[:, 0]
    diagnosis = diagnose(nn.Linear(48, 8), x, torch.randn(500, 8), lam)
    assert advice in diagnosis.advice
    assert advice in str(diagnosis)


class SamePadding(nn.Conv2d):
    """Pads its input itself, as timm's Conv2dSame does."""

    def forward(self, x):
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias, self.stride)


class Twice(nn.Linear):
    def forward(self, x):
        return super().forward(super().forward(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rows_of_a_layer_that_pads_its_input_itself_are_those_of_its_operator(dtype):
    layer, x = SamePadding(3, 4, 3, stride=2).to(dtype), torch.randn(2, 3, 9, 9)
    grad_z = torch.randn(2, 4, 5, 5)
    expected = diagnose(nn.Conv2d(3, 4, 3, stride=2, padding=1), x, grad_z)
    assert diagnose(layer, x, grad_z) == expected
    assert diagnose(TrAct(layer), x, grad_z) == expected


def test_weight_standardised_layers_of_another_library_are_diagnosed():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            return self._conv_forward(x, self.weight / self.weight.std(), self.bias)

    x, grad_z = torch.randn(2, 3, 9, 9), torch.randn(2, 4, 9, 9)
    layer = Standardised(3, 4, 3, padding=1, padding_mode="reflect")
    expected = diagnose(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), x, grad_z)
    assert diagnose(layer, x, grad_z) == expected


@pytest.mark.parametrize(
    ("layer", "x", "grad_z", "message"),
    [
        (
            nn.ReLU(),
            torch.randn(3, 4),
            torch.randn(3, 4),
            "takes an nn.Linear or nn.Conv1d/2d/3d; got ReLU",
        ),
        (
            nn.Linear(4, 2),
            torch.randn(3, 4),
            torch.randn(5, 2),
            r"grad_z of shape \(5, 2\) does not match x",
        ),
        (nn.Linear(4, 2), torch.randn(0, 4), torch.randn(0, 2), "0 rows"),
        (nn.Linear(4, 2), torch.randn(3, 5, 4), torch.randn(5, 3, 2), r"of shape \(3, 5, 2\)"),
        (nn.Linear(4, 2), [1.0], torch.randn(3, 2), "x takes a tensor; got list"),
        (nn.Linear(4, 2), torch.randn(3, 4), None, "grad_z takes a tensor; got NoneType"),
        (
            nn.Linear(5, 3),
            torch.randn(20, 7),
            torch.randn(20, 3),
            r"x of shape \(20, 7\) does not fit a weight of shape \(3, 5\)",
        ),
        (
            nn.Conv2d(3, 4, 3),
            torch.randn(2, 8, 8, 3),
            torch.randn(2, 4, 6, 6),
            r"x of shape \(2, 8, 8, 3\) does not fit",
        ),
        (
            SamePadding(3, 4, 3),
            torch.randn(2, 5, 8, 8),
            torch.randn(2, 4, 8, 8),
            r"a forward of SamePadding failed on x of shape \(2, 5, 8, 8\)",
        ),
        (
            TrAct(SamePadding(3, 4, 3)),
            torch.randn(2, 3, 8, 8),
            torch.randn(2, 4, 6, 6),
            r"grad_z of shape \(2, 4, 6, 6\) does not match .* of shape \(2, 4, 8, 8\)",
        ),
        (
            nn.LazyLinear(4),
            torch.randn(3, 4),
            torch.randn(3, 4),
            r"a forward of LazyLinear failed on x of shape \(3, 4\)",
        ),
        (
            Twice(4, 4),
            torch.randn(3, 4),
            torch.randn(3, 4),
            "Twice.forward called F.linear or F.conv1d/2d/3d 2 times",
        ),
    ],
)
def test_bad_input_is_refused(layer, x, grad_z, message):
    with pytest.raises(TrActError, match=message):
        diagnose(layer, x, grad_z)
