"""Whole networks that ONNX Runtime's quantisers wrote: the graph of the network before, and the runtime's numbers node by node."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from stretch.models.onnx import read_module
from tests.stretch.models.onnx.graphs import computed, net
from tests.stretch.models.onnx.oracle import random
from tests.stretch.models.onnx.quantised import static
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
