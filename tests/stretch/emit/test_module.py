import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402 - torch may be missing
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from predictors.graph import Op, OpGraph  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.emit.module import write_class  # noqa: E402
from stretch.operators.lowerings import make_module  # noqa: E402
from tests.stretch.export.test_onnx import operators  # noqa: E402

pytestmark = pytest.mark.torch


def made(written):
    """An instance of a class that was written, and nothing else that it could use."""
    names = {"nn": nn, "torch": torch, "F": F, **{each.__name__: each for each in written.helpers}}
    exec(written.text, names)
    return names[written.name]().eval()


@given(op=operators(), seed=st.integers(0, 1000))
def test_class_of_every_operator_computes_what_its_torch_module_computes(op, seed):
    vector = op.kind in ("linear", "unflatten") or (op.kind in ("layer_norm", "batch_norm", "softmax", "scale", "prelu") and seed % 2)
    shape = (1, 9, 4) if op.kind == "channels_first" else (1, 4) if vector else (1, 4, 9, 7)
    graph = OpGraph.build("net", [Op("input", "input", attrs={"shape": shape}), op], "op")
    torch.manual_seed(seed)
    module = make_module(op, [shape] * len(op.inputs)).eval()
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.1)
    written = write_class("Net", graph, "One operator.")
    net = made(written)
    state = {written.key("op", key): value for key, value in module.state_dict().items()} if written.attributes else {}
    net.load_state_dict(state)
    x = torch.randn(shape) * 4
    with torch.inference_mode():
        torch.testing.assert_close(net(x), module(*[x] * len(op.inputs)), rtol=1e-5, atol=1e-5)


class Crossing(nn.Module):
    """Tensors that are read late and twice, sums in products, and what is passed on."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Identity()

    def forward(self, x):
        a = self.a(x)
        early = F.relu(a)
        b = self.drop(self.b(early))
        c = (b + early + 1.5) * 0.5
        return torch.cat([c, a * (c + a), self.drop(b)], dim=1)[:, 2:9]


def test_tensors_that_are_read_late_twice_or_passed_on_keep_their_values():
    captured = capture(Crossing(), (2, 3, 6, 6), "crossing")
    written = write_class("Crossing", captured.graph, "Crossing.")
    net = made(written)
    net.load_state_dict({written.key(op, key): value for op, own in captured.weights.items() for key, value in own.items()})
    x = torch.randn(2, 3, 6, 6)
    with torch.inference_mode():
        torch.testing.assert_close(net(x), captured.module(x))


def test_input_that_nothing_reads_is_still_taken():
    ops = [Op("a", "input", attrs={"shape": (1, 2)}), Op("b", "input", attrs={"shape": (1, 2)}), Op("r", "relu", ("b",))]
    net = made(write_class("Net", OpGraph.build("net", ops, "r"), "One of two."))
    assert net(torch.ones(1, 2), -torch.ones(1, 2)).tolist() == [[0.0, 0.0]]
