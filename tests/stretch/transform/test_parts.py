"""Grouped convolutions in parts compute what they compute in one piece, in code and in a bundle's files."""

from dataclasses import replace

import msgspec
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from predictors.errors import StretchError, UnknownNameError  # noqa: E402
from predictors.predictor import LatencyPredictor  # noqa: E402
from predictors.rewrites import rewritten  # noqa: E402
from predictors.rewrites.grouped import PART  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from stretch.planning.plan import plan  # noqa: E402
from stretch.transform.model import Branch  # noqa: E402
from stretch.transform.parts import weights_in_parts, weights_of_wholes  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402

pytestmark = pytest.mark.torch
NAME = "grouped_conv=parts"


class ResNeXt(nn.Module):
    """Two blocks of ResNeXt in small."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.ModuleList(self._block() for _ in range(2))
        self.head = nn.Linear(16, 5)

    @staticmethod
    def _block() -> nn.Sequential:
        first = [nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
        grouped = [nn.Conv2d(32, 32, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
        return nn.Sequential(*first, *grouped, nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module", params=["resnext", "tiny_regnet"])
def network(request, captured):
    return capture(ResNeXt().eval(), (1, 3, 32, 32), "resnext") if request.param == "resnext" else captured("tiny_regnet")


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(2, 9), st.integers(2, 4), st.integers(1, 3), st.sampled_from([1, 2, 3]), st.integers(1, 2), st.booleans(), st.booleans())
def test_parts_compute_the_convolution(groups, reads, writes, kernel, stride, bias, norm):
    conv = nn.Conv2d(groups * reads, groups * writes, kernel, stride, kernel // 2, groups=groups, bias=bias)
    layers = nn.Sequential(conv, nn.BatchNorm2d(groups * writes), nn.SiLU()) if norm else nn.Sequential(conv)
    for module in layers:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.running_mean)
    found = capture(layers.eval(), (1, groups * reads, 7, 6), "net")
    graph, done = rewritten(found.graph, [NAME])
    assert done == (NAME,)
    module = Branch(graph).eval()
    for op, own in weights_in_parts(graph, found.weights).items():
        module.get_submodule(op).load_state_dict(own, strict=False)
    x = torch.randn(1, groups * reads, 7, 6)
    with torch.inference_mode():
        torch.testing.assert_close(module(x), layers(x), rtol=1e-4, atol=1e-5)


def test_weights_in_parts_are_one_piece_again(network):
    graph = rewritten(network.graph, [NAME])[0]
    again = weights_of_wholes(graph, weights_in_parts(graph, network.weights))
    for name, own in network.weights.items():
        for key, tensor in own.items():
            assert torch.equal(again[name][key], tensor)


def having(**keys):
    device = specified("mi9")
    return replace(device, processors={**device.processors, "gpu": msgspec.structs.replace(device.processors["gpu"], **keys)})


@pytest.mark.representatives(1)
def test_plan_times_parts_as_what_is_launched_and_says_so(network):
    config = PlanConfig(processors=("cpu", "gpu"))
    lacking = plan(network.graph, having(unsupported=("grouped_conv",)), config)
    device = having(unsupported=("grouped_conv",), rewrites=(NAME,))
    parts = plan(network.graph, device, config)
    assert parts.run.makespan_ms <= lacking.run.makespan_ms
    used = {b.rewrites for part in parts.design.segments for b in part.branches if b.rewrites}
    assert used <= {(NAME,)}
    assert any("run in parts" in str(said) for said in parts.warnings) == bool(used)
    graph = scaled_graph(network.graph, parts.design)
    assert any(PART in op.tags for op in graph.ops) == bool(used)
    launched = LatencyPredictor(device).kernels(rewritten(network.graph, [NAME])[0], "gpu")
    assert not any(kernel.elsewhere for kernel in launched)


@pytest.mark.parametrize(
    ("keys", "why"),
    [({"rewrites": ("grouped_conv=part",)}, "unknown rewrite"), ({"unsupported": ("grouped_convs",)}, "no kind of operator")],
)
def test_profile_that_misspells_it_is_refused(captured, keys, why):
    with pytest.raises((StretchError, UnknownNameError), match=why):
        plan(captured("tiny_regnet").graph, having(**keys), PlanConfig(processors=("cpu", "gpu")))
