"""Export: a network with TrAct leaves as the plain network, operator for operator."""

import copy
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.jit.frontend import NotSupportedError

from cases import assert_close
from trainact import UnsupportedLayerError, apply_tract, remove_tract


def plain_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )


OPTIONS = {
    "training": {},
    "evaluation": {},
    "centered": {"center": True, "relative": True},
    "averaged": {"center": True, "moment_decay": 0.9},
}


@pytest.fixture(params=OPTIONS)
def networks(request):
    plain = plain_network().train(request.param != "evaluation")
    tract = copy.deepcopy(plain)
    apply_tract(tract, **OPTIONS[request.param])
    return plain, tract


@pytest.fixture
def images():
    return torch.randn(2, 3, 6, 6)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_export_gives_the_plain_graph(networks, images, dynamic):
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},) if dynamic else None
    programs = [torch.export.export(m, (images,), dynamic_shapes=shapes) for m in networks]
    plain, tract = ([str(n.target) for n in p.graph.nodes if n.op != "output"] for p in programs)
    assert tract == plain
    assert torch.equal(programs[1].module()(images), networks[0](images))


@pytest.mark.slow
@pytest.mark.parametrize("networks", ["evaluation"], indirect=True)
def test_onnx_gives_the_plain_graph_and_the_same_outputs(networks, images):
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    models = []
    for network in networks:
        program = torch.onnx.export(network, (images,), dynamo=True, verbose=False)
        models.append(program.model_proto)
    plain, tract = ([node.op_type for node in model.graph.node] for model in models)
    assert tract == plain
    session = onnxruntime.InferenceSession(
        models[1].SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (output,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert_close(torch.from_numpy(output), networks[0](images).detach(), 1e-5)


def operators(module) -> list[str]:
    return [node.kind() for node in module.inlined_graph.nodes() if node.kind() != "prim::GetAttr"]


def computations(module) -> list[str]:
    return [kind for kind in operators(module) if kind.startswith("aten::")]


def test_jit_trace_gives_the_plain_graph(networks, images):
    plain, tract = (torch.jit.trace(network, images) for network in networks)
    assert computations(tract) == computations(plain)
    assert not any("Python" in kind for kind in operators(tract))
    assert torch.equal(tract(images), networks[0](images))


def test_jit_script_gives_the_plain_network_and_is_saved(networks, images):
    plain, tract = (torch.jit.script(network) for network in networks)
    assert computations(tract) == computations(plain)
    assert not any("Python" in kind for kind in operators(tract))
    buffer = io.BytesIO()
    torch.jit.save(tract, buffer)
    buffer.seek(0)
    assert torch.equal(torch.jit.load(buffer)(images), networks[0](images))


class PaddedConv2d(nn.Conv2d):
    """A layer class of another library."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(F.pad(x, (1, 0)), self.weight, self.bias)


def test_jit_script_takes_a_layer_class_of_another_library_after_remove_tract(images):
    model = nn.Sequential(PaddedConv2d(3, 4, 3))
    expected = model(images)
    apply_tract(model)
    with pytest.raises(NotSupportedError, match="variable number of arguments"):
        torch.jit.script(model)
    remove_tract(model)
    assert torch.equal(torch.jit.script(model)(images), expected)


def test_jit_trace_takes_a_layer_class_of_another_library(images):
    model = nn.Sequential(PaddedConv2d(3, 4, 3))
    expected = model(images)
    apply_tract(model)
    assert torch.equal(torch.jit.trace(model, images)(images), expected)


def test_fx_takes_a_layer_class_of_another_library_after_remove_tract(images):
    model = nn.Sequential(PaddedConv2d(3, 4, 3))
    expected = model(images)
    apply_tract(model)
    with pytest.raises(UnsupportedLayerError, match=r"torch\.fx cannot trace TrActPaddedConv2d"):
        torch.fx.symbolic_trace(model)
    remove_tract(model)
    assert torch.equal(torch.fx.symbolic_trace(model)(images), expected)


def test_dynamic_quantisation_takes_the_layer_after_remove_tract():
    quantization = pytest.importorskip("torch.ao.quantization", reason="torch has none")
    if not hasattr(quantization, "quantize_dynamic"):
        pytest.skip("torch has no quantize_dynamic")
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2))
    apply_tract(model, layers="0")

    def list_kinds() -> list[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch deprecates it
            converted = quantization.quantize_dynamic(model, {nn.Linear})
        return [type(layer).__module__.split(".")[0] for layer in (converted[0], converted[2])]

    assert list_kinds() == ["trainact", "torch"]  # it skips subclasses
    remove_tract(model)
    assert list_kinds() == ["torch", "torch"]


@pytest.mark.filterwarnings("ignore")  # torch deprecates it
def test_quantisation_aware_training_works_between_prepare_and_convert():
    quantization = pytest.importorskip("torch.ao.quantization", reason="torch has none")
    if not hasattr(quantization, "prepare_qat") or not torch.backends.quantized.supported_engines:
        pytest.skip("torch has no prepare_qat")
    model = nn.Sequential(
        quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), quantization.DeQuantStub()
    )
    model.qconfig = quantization.get_default_qat_qconfig()
    quantization.prepare_qat(model, inplace=True)
    apply_tract(model, layers="1")
    x = torch.rand(4, 3, 8, 8)
    model(x).square().mean().backward()
    twin = copy.deepcopy(model)
    remove_tract(twin)
    twin.zero_grad()
    twin(x).square().mean().backward()
    assert not torch.allclose(model[1].weight.grad, twin[1].weight.grad)
    remove_tract(model)
    converted = quantization.convert(model.eval())
    assert "quantized" in type(converted[1]).__module__
    assert converted(x).shape == (4, 4, 6, 6)


@pytest.mark.parametrize("networks", ["training", "evaluation", "centered"], indirect=True)
def test_fx_keeps_training_with_tract(networks, images):
    _, tract = networks
    traced = torch.fx.symbolic_trace(copy.deepcopy(tract))
    assert torch.equal(traced(images), tract(images))
    for network in (traced, tract):
        network(images).square().mean().backward()
    for name, parameter in tract.named_parameters():
        assert torch.equal(traced.get_parameter(name).grad, parameter.grad), name


@pytest.mark.parametrize("networks", ["averaged"], indirect=True)
def test_fx_refuses_a_layer_with_state(networks):
    """fx has no place for tensors that are neither parameters nor buffers."""
    with pytest.raises(NotImplementedError, match="SecondMoment"):
        torch.fx.symbolic_trace(networks[1])
