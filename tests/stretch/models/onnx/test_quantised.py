"""Whole networks that ONNX Runtime's quantisers wrote: the graph of the network before, and the runtime's numbers node by node."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat

from stretch.models.onnx import read_module
from tests.stretch.models.onnx.graphs import computed, net
from tests.stretch.models.onnx.oracle import random
from tests.stretch.models.onnx.quantised import dynamic, static
from tests.stretch.models.onnx.test_network import canonical, export

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from stretch.capture import capture  # noqa: E402
from stretch.models.load import load_model  # noqa: E402

SHAPE = (1, 3, 32, 32)


class Tokens(torch.nn.Module):
    """A small transformer of an image's patches."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, activation="gelu")
        self.patches, self.head = torch.nn.Conv2d(3, 32, 8, 8), torch.nn.Linear(32, 10)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def network(name):
    """A network whose batch norms know what noise makes of it, so that no rounding is larger than the signal."""
    torch.manual_seed(0)
    module = Tokens() if name == "tokens" else load_model(name, weights="none").module
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None
    with torch.no_grad():
        module.train()(torch.from_numpy(random((16, *SHAPE[1:]))))
    return module.eval()


def rectified(graph):
    """A graph without the bounds of its rectifiers: a range below 6 says no more than that nothing is below zero."""
    return [("relu" if kind == "relu6" else kind, {} if kind == "relu6" else attrs, *more) for kind, attrs, *more in canonical(graph)]


def session(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def tensors(path, x):
    """Every tensor that the runtime computes."""
    model = onnx.load(str(path))
    del model.graph.output[:]
    names = [name for node in model.graph.node for name in node.output]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model, dict(zip(names, session(model).run(None, {model.graph.input[0].name: x}), strict=True))


def reals(numbers, scale, zero):
    return (numbers.astype(np.float32) - np.float32(zero)) * scale


def check_nodes(folder, path, x):
    """Assert that each node which reads one tensor of bytes makes of the runtime's own what the runtime does, to half a step."""
    model, made = tensors(path, x)
    stored = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    checked = 0
    for node in model.graph.node:
        read = [name for name in node.input if name in made]
        if not node.op_type.startswith("QL") or len(read) != 1 or node.op_type == "QLinearConcat":
            continue
        at = 6 if node.op_type in ("QLinearConv", "QLinearMatMul") else 3
        steps = [stored[node.input[i]] for i in (1, 2, at, at + 1)]
        numbers = reals(made[read[0]], *steps[:2])
        ends = [
            helper.make_node("QuantizeLinear", ["x", *node.input[1:3]], [read[0]]),
            node,
            helper.make_node("DequantizeLinear", [node.output[0], *node.input[at : at + 2]], ["y"]),
        ]
        own = {name: stored[name] for each in ends for name in each.input if name in stored}
        onnx.save(net(*ends, stored=own, shape=numbers.shape), str(folder / "node.onnx"))
        limits = np.iinfo(steps[3].dtype)
        low, high = (reals(np.array(bound), *steps[2:]) for bound in (limits.min, limits.max))
        got, want = np.clip(computed(folder / "node.onnx", numbers), low, high), reals(made[node.output[0]], *steps[2:])
        assert np.abs(got - want).max() <= 0.51 * steps[2]
        checked += 1
    return checked


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("each", [False, True], ids=["per tensor", "per channel"])
def test_network_of_bytes_is_the_network_before_and_each_node_computes_what_the_runtime_does(tmp_path, kind, each):
    path = export(network("tiny_resnet"), SHAPE, tmp_path / "m.onnx", False)
    made = static(path, tmp_path / "q.onnx", SHAPE, kind, each)
    found = read_module(made)
    assert canonical(capture(found, SHAPE).graph) == canonical(capture(read_module(path), SHAPE).graph)
    assert "rounds" in found.warnings[0]
    x = random(SHAPE, 9)
    assert check_nodes(tmp_path, made, x) >= 7
    real = computed(path, x)
    assert 0 < np.abs(computed(made, x) - real).max() < 0.1 * np.abs(real).max()


@pytest.mark.slow
def test_both_forms_of_a_rounded_network_are_the_same_numbers(tmp_path):
    path = export(network("tiny_resnet"), SHAPE, tmp_path / "m.onnx", False)
    one, other = (static(path, tmp_path / f"{form.name}.onnx", SHAPE, form=form) for form in (QuantFormat.QOperator, QuantFormat.QDQ))
    x = random(SHAPE, 9)
    np.testing.assert_allclose(computed(one, x), computed(other, x), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_network_rounded_by_its_own_ranges_is_the_network_before(tmp_path, kind):
    path = export(network("tiny_resnet"), SHAPE, tmp_path / "m.onnx", False)
    made = dynamic(path, tmp_path / "q.onnx", kind)
    assert canonical(capture(read_module(made), SHAPE).graph) == canonical(capture(read_module(path), SHAPE).graph)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["static", "dynamic"])
def test_transformer_of_bytes_computes_what_the_runtime_does(tmp_path, how):
    path = export(network("tokens"), SHAPE, tmp_path / "m.onnx", False)
    made = static(path, tmp_path / "q.onnx", SHAPE) if how == "static" else dynamic(path, tmp_path / "q.onnx")
    x = random(SHAPE, 9)
    [want] = session(onnx.load(str(made))).run(None, {onnx.load(str(made)).graph.input[0].name: x})
    got = computed(made, x)
    # What is rounded on the way: the network of reals is no closer to the runtime's bytes.
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()
    assert np.abs(got - want).max() <= 1.5 * np.abs(computed(path, x) - want).max()


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_large_network_of_bytes_is_the_network_before_and_is_planned(tmp_path, name, each):
    import stretch

    path = export(network(name), SHAPE, tmp_path / "m.onnx", False)
    made = static(path, tmp_path / "q.onnx", SHAPE, each=each)
    assert rectified(capture(read_module(made), SHAPE).graph) == rectified(capture(read_module(path), SHAPE).graph)
    assert check_nodes(tmp_path, made, random(SHAPE, 9)) > 15
    config = stretch.PlanConfig(processors=("cpu", "gpu"), alpha=5, beta=5)
    assert stretch.branch(str(made), "mi9", config=config, dry_run=True).plan.macs_ratio > 0.9
