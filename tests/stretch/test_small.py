"""Branching of operators with several results, tensors without axes, grouped convolutions and shared weights."""

import contextlib
import copy
import importlib

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.nn import functional as F

import stretch
from predictors.errors import StretchError
from scheduler import Session
from scheduler.bundle.load import load_bundle
from stretch.export.onnx import to_numpy, to_onnx
from stretch.network.capture import capture
from stretch.stages.reopen import load_bundle_model
from stretch.tools.emit.package import captured_sources, write_package
from tests.effort import examples
from tests.stretch.several import form
from tests.stretch.small import IMAGE, Around, Drawn, branched, compared, given, networks, nodes, tokens
from tests.stretch.test_several_ends import LOOSE

# Operators with several results.


def states(x, layer):
    """Return all results of a recurrent layer."""
    every, last = layer(tokens(x))
    return every, last


#: Functions of a map, the layers, the expected types of nodes and their number.
SEVERAL = {
    "lstm": (states, [nn.LSTM(16, 12, batch_first=True)], ("LSTM",), 1),
    "two layers of lstm": (states, [nn.LSTM(16, 12, 2, bidirectional=True, batch_first=True)], ("LSTM",), 2),
    "states of an lstm alone": (lambda x, layer: layer(tokens(x))[1], [nn.LSTM(16, 12)], ("LSTM",), 1),
    "state of a gru": (lambda x, layer: (lambda every, last: (every.mean(1), last[-1]))(*layer(tokens(x))), [nn.GRU(16, 12, 2, batch_first=True)], ("GRU",), 2),
    "rnn, which is written step by step": (states, [nn.RNN(16, 12, batch_first=True)], ("Tanh",), IMAGE[3]),
    "topk": (lambda x: x.mean((2, 3)).topk(3, 1), [], ("TopK",), 1),
    "topk that is gathered": (lambda x: (lambda best: torch.gather(2 * x.flatten(2), 2, best[1]) + best[0])(x.flatten(2).topk(3, 2)), [], ("TopK",), 1),
    "max with places": (lambda x: x.max(1), [], ("ArgMax",), 1),
    "sort": (lambda x: x.mean((2, 3)).sort(1), [], ("TopK",), 1),
    "variance and mean": (lambda x: (lambda v, m: v / (5 + m))(*torch.var_mean(x, (2, 3))), [], ("Sub",), 1),
    "places of pooling": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), [], ("MaxPool",), 2),
    "weights of attention": (lambda x, layer: layer(*[tokens(x)] * 3), [nn.MultiheadAttention(16, 4, batch_first=True)], ("Softmax",), 1),
}  # fmt: skip


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", SEVERAL)
def test_operator_with_several_results_is_computed_once(tmp_path, name):
    function, layers, kinds, count = SEVERAL[name]
    module = Around(function, copy.deepcopy(layers))
    branched(module, folder=tmp_path / "b")
    assert nodes(tmp_path / "b" / "model.onnx", *kinds) == nodes(tmp_path / "b" / "original.onnx", *kinds) == count


@pytest.mark.representatives(1)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_layer_is_counted_once_with_all_its_matrices(layers, directions):
    recurrent = nn.LSTM(16, 12, layers, batch_first=True, bidirectional=directions == 2)
    graph = capture(Around(states, [recurrent]), IMAGE).graph
    (op,) = (op for op in graph.ops if op.attrs.get("variant") == "lstm")
    assert graph.op_macs(op) == IMAGE[3] * sum(weight.numel() for name, weight in recurrent.named_parameters() if weight.dim() == 2)
    assert graph.op_facts(op).params == sum(weight.numel() for weight in recurrent.parameters())


@pytest.mark.slow
def test_results_of_a_batch_are_those_of_each_image():
    branched(Around(lambda x, layer: layer(tokens(x))[1][0][0] + layer(tokens(x))[0].mean(1), SEVERAL["lstm"][1]), (2, *IMAGE[1:]))


def test_returned_integers_are_reported_with_a_warning():
    result = branched(Around(lambda x: {"best": x.mean((2, 3)).argmax(1), "high": x.mean((2, 3)) > 0}))
    assert any("`best`, `high`" in warning and "whole numbers" in warning for warning in result.warnings)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layer_that_projects_its_states_is_refused():
    with pytest.raises(StretchError) as refused:
        capture(Around(states, [nn.LSTM(16, 12, batch_first=True, proj_size=3)]), IMAGE)
    assert "projects" in f"{refused.value.message} {refused.value.hint}"


def _ends(nodes):
    """Return the shapes of the inputs: an image, and a scalar if a node reads `t`."""
    return {"x": IMAGE} | ({"t": ()} if any("t" in reads.split() for _, reads, *_ in nodes) else {})


def _file(path, added, outputs, **weights):
    """Write an ONNX file of a convolution to the map `m` and further nodes (operator, inputs, outputs, attributes)."""
    generator, given = np.random.default_rng(0), {"w": (16, 3, 3, 3), **weights}
    arrays = {key: value if isinstance(value, np.ndarray) else generator.random(value, np.float32) - 0.5 for key, value in given.items()}
    nodes = [("Conv", "x w", "m", {"kernel_shape": [3, 3], "pads": [1] * 4}), *added]
    graph = helper.make_graph(
        [helper.make_node(kind, reads.split(), writes.split(), **attributes) for kind, reads, writes, attributes in nodes],
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in _ends(added).items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, key) for key, value in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(path))
    return path


RECURRENT = [("ReduceMean", "m axes", "r", {"keepdims": 0}), ("Transpose", "r", "s", {"perm": [2, 0, 1]}), ("LSTM", "s wx wh", "y h c", {"hidden_size": 8})]  # fmt: skip
FILES = {
    "states": (RECURRENT, {"y": (24, 1, 1, 8), "h": (1, 1, 8), "c": (1, 1, 8)}, {"wx": (1, 32, 16), "wh": (1, 32, 8), "axes": np.array([2])}, "LSTM"),
    "best channels": ([("TopK", "m k", "v places", {"axis": 1}), ("Conv", "v w2", "y", {})], {"y": (1, 4, 24, 24)}, {"k": np.array([6]), "w2": (4, 6, 1, 1)}, "TopK"),
    "number in": ([("Mul", "m t", "y", {})], {"y": (1, 16, 24, 24)}, {}, "Mul"),
    "scalar": ([("Abs", "m", "a", {}), ("ReduceMean", "a", "s", {"keepdims": 0}), ("Mul", "m s", "y", {})], {"y": (1, 16, 24, 24), "s": ()}, {}, "Abs"),
}  # fmt: skip


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", FILES)
def test_file_with_several_results_or_scalars_runs_on_any_delegate_as_in_onnx_runtime(tmp_path, name):
    added, outputs, weights, kind = FILES[name]
    path = _file(tmp_path / "net.onnx", added, outputs, **weights)
    stretch.branch(str(path), "mi9", out=tmp_path / "b", lossless=True)
    assert nodes(tmp_path / "b" / "model.onnx", kind) == 1
    x = {key: np.random.default_rng(1).random(shape, np.float32) for key, shape in _ends(added).items()}
    want = onnxruntime.InferenceSession(str(path)).run(None, {key: np.asarray(value, np.float32) for key, value in x.items()})
    for delegate, expectation in {"cpu": contextlib.nullcontext(), "opencl": pytest.warns(UserWarning, match="runs on the CPU")}.items():
        mapping = {"cpu": delegate, "gpu": delegate}
        with expectation, Session(tmp_path / "b", mapping) as session:
            got = session.run(x if len(x) > 1 else x["x"])
        compared(list(got.values()) if isinstance(got, dict) else [got], want)
    assert any("on the CPU instead" in row.reason for row in stretch.api.explain(tmp_path / "b", mapping=mapping).ops)


LAST_ZEROS = {
    "image": lambda x: F.max_pool2d(F.pad(-x.abs(), (1, 1, 1, 1)), 3, 2),
    "row": lambda x: F.max_pool1d(F.pad(-x.abs().mean(2), (1, 1)), 3, 2),
}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", LAST_ZEROS)
def test_padding_with_zeros_counts_in_max_pooling(name):
    module, (x,) = Around(LAST_ZEROS[name]), given([IMAGE])
    captured = capture(module, IMAGE)
    model = to_onnx(captured.graph, to_numpy(captured.weights)).SerializeToString()
    with torch.no_grad():
        compared(onnxruntime.InferenceSession(model).run(None, {captured.graph.input.name: x.numpy()}), [module(x)])


def test_file_with_zero_padding_before_max_pooling_follows_onnx(tmp_path):
    added = [("Pad", "m pads", "p", {}), ("MaxPool", "p", "y", {"kernel_shape": [3, 3], "strides": [2, 2]})]
    path = _file(tmp_path / "net.onnx", added, {"y": (1, 16, 12, 12)}, pads=np.array([0, 0, 1, 1] * 2))
    result = stretch.branch(str(path), "mi9", lossless=True)
    (x,) = given([IMAGE])
    with torch.no_grad():
        compared([result.model(x)], ReferenceEvaluator(str(path)).run(None, {"x": x.numpy()}))


# Tensors without axes, with one axis, and without elements.


class Weighed(nn.Conv2d):
    """A convolution whose result is multiplied by another input."""

    def __init__(self):
        super().__init__(3, 8, 3)

    def forward(self, x, gain):
        return torch.relu(super().forward(x) * gain)


NO_AXES = {
    "beside a vector": lambda x: (x.mean((2, 3)), x.abs().mean()),
    "within": lambda x: x * x.abs().mean(),
    "alone": lambda x: x.square().sum().sqrt(),
    "one element": lambda x: (x.mean((2, 3))[0, 0], x),
    "one axis": lambda x: x.mean((2, 3)).amax(1),
    "no batch": lambda x: x.mean((2, 3)).squeeze(0),
    "nothing joined": lambda x: torch.cat([x, x[:, :0]], 1),
}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", NO_AXES)
def test_tensors_of_fewer_axes_run(tmp_path, name):
    branched(Around(NO_AXES[name]), folder=tmp_path / "b")


def test_scalar_next_to_an_image_is_an_input(tmp_path):
    module = Weighed().eval()
    branched(module, {"x": IMAGE, "gain": ()}, tmp_path / "b")
    assert _count(load_bundle_model(load_bundle(tmp_path / "b"))[1]) == _count(module)


@pytest.mark.parametrize("shapes", [(), {"x": IMAGE, "gain": (0,)}, (1, 0, 8, 8), IMAGE])
def test_network_with_an_empty_input_or_output_is_refused(shapes):
    module = Weighed().eval() if shapes != IMAGE else Around(lambda x: x[:, :0])
    with pytest.raises(StretchError, match=r"no shape|are not in"):
        stretch.branch(module, "mi9", input_shape=shapes, dry_run=True)


def test_operator_that_bundles_do_not_support_is_refused_by_a_dry_run():
    with pytest.raises(StretchError, match="no bundle holds `DFT`"):
        stretch.branch(Around(lambda x: torch.fft.rfft2(x).abs()), "mi9", input_shape=IMAGE, dry_run=True)


def test_network_without_multiplications_is_planned():
    assert stretch.branch(nn.MaxPool2d(2), "mi9", input_shape=IMAGE, dry_run=True).to_json()["macs_ratio"] == 1.0


# A network that a dry run accepts can be built.


@pytest.mark.representatives(1)
@pytest.mark.parametrize("sizes", [(16, 24, 8), (24, 16, 8), (12, 18, 6), (8, 24, 8), (16, 8, 4), (12, 4, 4)])
@pytest.mark.parametrize("device", ["mi9", "pixel6"])
def test_grouped_convolution_that_changes_channels_is_built(sizes, device):
    before, out, groups = sizes
    branched(Drawn([nn.Conv2d(8, before, 3, padding=1), nn.Conv2d(before, out, 3, padding=1, groups=groups)], "vector"), device=device)


@pytest.mark.slow
@settings(max_examples=examples(12))
@drawn(networks())
def test_network_that_a_dry_run_accepts_is_built_and_equals_torch(module):
    assert stretch.branch(module, "rk3588", input_shape=IMAGE, dry_run=True, lossless=True).model is None
    branched(module, device="rk3588")
    assert stretch.branch(module, "rk3588", input_shape=IMAGE, **LOOSE).model is not None


# Weights that a network uses more than once.


class Twice(nn.Module):
    """A block that is used on an image and on its mirror image, and a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.again, self.other, self.third = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 16), nn.Linear(16, 16)
        self.third.weight = self.other.weight

    def forward(self, x):
        x = self.stem(x)
        y = self.block(self.block(x)) + self.block(x.flip(3)).flip(3)
        every, _ = self.again(self.again(tokens(y))[0])
        return self.third(torch.relu(self.other(every.mean(1))))


def _count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.slow
def test_weights_that_are_used_twice_are_stored_once(tmp_path):
    module = Twice().eval()
    result = branched(module, folder=tmp_path / "b")
    assert _count(result.model) == result.plan.params == _count(module)
    assert result.plan.params_ratio == 1
    assert any("share weights" in warning for warning in result.warnings)
    for name in ("model.onnx", "original.onnx"):
        file = onnx.load(str(tmp_path / "b" / name)).graph
        assert sum(int(np.prod(tensor.dims)) for tensor in file.initializer if tensor.data_type == TensorProto.FLOAT) < 1.1 * _count(module)
    assert _count(load_bundle_model(load_bundle(tmp_path / "b"))[1]) == _count(module)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["lstm", "topk", "used twice"])
def test_package_of_torch_code_calls_operators_once_and_shares_weights(tmp_path, name):
    module = Twice().eval() if name == "used twice" else Around(*copy.deepcopy(SEVERAL[name][:2]))
    sources = captured_sources(capture(module, IMAGE))
    package = f"package_{name.partition(' ')[0]}"
    write_package(tmp_path / package, sources, module, "A network.")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        assert _count(importlib.import_module(package).load()) == _count(module)
    assert sources.modules["network"].count(f"aten.{name}.") == (name != "used twice")


@pytest.mark.slow
def test_siamese_network_stays_symmetric_when_it_is_trained():
    module, shapes = form("siamese")
    model = branched(module, shapes, device="rk3588").model.double().float().train()
    optimiser = torch.optim.SGD(model.parameters(), 1e-2)
    for seed in range(3):
        torch.manual_seed(seed)
        optimiser.zero_grad()
        model(*torch.randn(2, 4, 3, 16, 16)).square().mean().backward()
        optimiser.step()
    left, right = torch.randn(2, 1, 3, 16, 16)
    with torch.no_grad():
        model.eval()
        assert torch.allclose(model(left, right), model(right, left), atol=1e-6)
        assert not torch.allclose(model(left, right), module(left, right), atol=1e-4)
    assert _count(copy.deepcopy(model)) == _count(module)


@pytest.mark.slow
def test_copies_of_weights_are_reported_if_a_design_cannot_share_them():
    block = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), block, block, nn.Conv2d(16, 16, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(16, 5)).eval()
    result = stretch.branch(module, "mi9", input_shape=IMAGE, processors=("cpu", "gpu"), kinds=["stretch"], **LOOSE)
    (message,) = (warning for warning in result.warnings if "share weights" in warning)
    assert "copy of its own" in message
    assert not result.plan.shared
    assert _count(result.model) == result.plan.params
