"""Lost TrAct layers are reported, and the stored names are deleted on removal."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn

from trainact import (
    TrActLayer,
    TrActValueError,
    accumulate,
    apply_tract,
    check_tract,
    remove_tract,
)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))


def lose_the_layer(model: nn.Module) -> None:
    model[0] = nn.Conv2d(3, 4, 5)


def test_the_names_of_the_tract_layers_are_returned():
    model = make_model()
    assert check_tract(model) == []
    apply_tract(model)
    assert check_tract(model) == ["0"]


def test_a_lost_layer_is_named_with_what_to_do():
    model = make_model()
    apply_tract(model)
    lose_the_layer(model)
    with pytest.raises(TrActValueError, match=r"gave '0' TrAct.*call trainact\.apply_tract"):
        check_tract(model)


def test_a_lost_layer_is_found_in_a_submodule():
    model = make_model()
    apply_tract(model)
    outer = nn.ModuleDict({"backbone": model})
    assert check_tract(outer) == ["backbone.0"]
    lose_the_layer(model)
    with pytest.raises(TrActValueError, match=r"gave 'backbone\.0' TrAct"):
        check_tract(outer)


def test_accumulate_refuses_a_model_that_lost_its_layer():
    model = make_model()
    apply_tract(model)
    lose_the_layer(model)
    with pytest.raises(TrActValueError, match="a plain layer has replaced it"), accumulate(model):
        pass


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: reload_whole(m)], ids=["deepcopy", "pickle"])  # fmt: skip
def test_a_copy_keeps_the_names(duplicate):
    model = make_model()
    apply_tract(model)
    twin = duplicate(model)
    assert check_tract(twin) == ["0"]
    lose_the_layer(twin)
    with pytest.raises(TrActValueError, match="'0'"):
        check_tract(twin)
    assert check_tract(model) == ["0"]


def reload_whole(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_the_names_are_not_in_the_state_dict_and_removal_deletes_them():
    model = make_model()
    attributes, keys = dict(vars(model)), list(model.state_dict())
    apply_tract(model)
    assert list(model.state_dict()) == keys
    assert vars(model) != attributes
    remove_tract(model)
    assert vars(model) == attributes


def test_removal_deletes_the_names_in_submodules():
    model = nn.ModuleDict({"backbone": make_model()})
    attributes = dict(vars(model["backbone"]))
    apply_tract(model["backbone"])
    assert remove_tract(model) == ["backbone.0"]
    assert vars(model["backbone"]) == attributes
    assert check_tract(model) == []


def test_removing_warns_of_a_lost_layer_and_forgets_it():
    model = make_model()
    apply_tract(model)
    lose_the_layer(model)
    with pytest.warns(UserWarning, match="gave '0' TrAct's gradient"):
        assert remove_tract(model) == []
    assert check_tract(model) == []


def test_applying_again_restores_a_lost_layer_without_a_warning():
    model = make_model()
    apply_tract(model)
    lose_the_layer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert apply_tract(model) == ["0"]
    assert check_tract(model) == ["0"]


def test_applying_to_another_layer_warns_of_a_lost_one():
    model = make_model()
    apply_tract(model)
    lose_the_layer(model)
    with pytest.warns(UserWarning, match="gave '0' TrAct's gradient"):
        apply_tract(model, layers="2")
    assert check_tract(model) == ["2"]


def test_a_wrapped_layer_is_not_lost():
    model = make_model()
    apply_tract(model)
    model[0] = nn.Sequential(model[0])
    assert check_tract(model) == ["0.0"]


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def compile_eagerly(part: nn.Module) -> nn.Module:
    return torch.compile(part, backend="eager")


def put_norm_first(part: nn.Module) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(3), part)


@pytest.mark.parametrize(
    ("backbone", "wrap", "name"),
    [
        (Backbone, nn.DataParallel, "backbone.module.conv"),
        (Backbone, put_norm_first, "backbone.1.conv"),
        (make_model, put_norm_first, "backbone.1.0"),  # 'backbone.0' is the norm now
        (Backbone, compile_eagerly, "backbone._orig_mod.conv"),
    ],
)
def test_a_layer_in_a_wrapped_part_is_not_lost(backbone, wrap, name):
    model = nn.Sequential()
    model.backbone = backbone()
    apply_tract(model)
    model.backbone = wrap(model.backbone)
    assert check_tract(model) == [name]
    with accumulate(model):
        model(torch.rand(2, 3, 8, 8)).sum().backward()
    model.set_submodule(name, nn.Conv2d(3, 4, 3))
    with pytest.raises(TrActValueError, match=r"gave 'backbone\.(conv|0)' TrAct"):
        check_tract(model)


def test_a_tract_layer_with_a_stored_name_does_not_hide_a_lost_one():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), make_model()))
    apply_tract(model, layers=["0.0", "0.1.0"])
    model[0][0] = nn.Conv2d(3, 3, 3)
    with pytest.raises(TrActValueError, match=r"gave '0\.0' TrAct"):
        check_tract(model)


def test_a_layer_as_the_model_stores_no_names():
    layer = nn.Conv2d(3, 4, 3)
    attributes = dict(vars(layer))
    apply_tract(layer)
    assert isinstance(layer, TrActLayer)
    remove_tract(layer)
    assert vars(layer) == attributes


def test_only_modules_are_checked():
    with pytest.raises(TypeError, match=r"check_tract takes an nn\.Module; got str"):
        check_tract("resnet18")
