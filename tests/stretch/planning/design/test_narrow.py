"""Graphs with fewer channels: leaving out hidden units of tokens, including heads, equals setting them to zero."""

import pytest

torch = pytest.importorskip("torch")
import hypothesis.strategies as st  # noqa: E402 - torch may be missing
from hypothesis import given, settings  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from predictors.graph import OpGraph  # noqa: E402
from predictors.slices import Channels, width  # noqa: E402
from stretch.network.capture import capture  # noqa: E402
from stretch.network.capture.exported import capture_runnable  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.scale import ScaledBranch, narrowed_ops  # noqa: E402
from stretch.planning.divisions.channels import channel_step, divided_tensor, needed_channels  # noqa: E402
from stretch.planning.network.segments import channel_groups, cut_points, divide, split_segments  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.build import load_weights  # noqa: E402
from stretch.transform.model import Branch  # noqa: E402
from stretch.transform.width import inherit  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.stretch.network.capture.token_patterns import ATTENTIONS, HEADS, MLPS, Fused, Interleaved, Mlp, ShiftedWindows, network  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 3, 8, 8)


def narrowed_module(captured, chosen):
    """The captured network with only the chosen units of each group, and its graph."""
    graph, channels = captured.graph, channel_groups(captured.graph)
    units = {group: chosen.get(group, torch.arange(count)) for group, count in channels.units.items()}
    kept = {group: len(index) for group, index in units.items()}
    narrow = OpGraph.build(graph.name, narrowed_ops(graph, channels, kept), graph.outputs)
    module = Branch(narrow).eval()
    branch = ScaledBranch(narrow, graph, channels, kept, 0)
    with torch.no_grad():
        for name, weights in inherit(branch, captured, units, None).items():
            load_weights(module.get_submodule(name), weights)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [*MLPS, *ATTENTIONS], ids=lambda pattern: pattern.__name__)
@settings(max_examples=examples(4), deadline=None)
@given(data=st.data())
def test_network_with_fewer_hidden_units_equals_the_network_with_zeros_in_their_place(pattern, data):
    parent = network(pattern)
    captured = capture_runnable(parent, SHAPE, "net")
    channels = channel_groups(captured.graph)
    hidden = captured.graph.by_name["1_proj"].inputs[0]
    ((group, per),) = channels.pieces[hidden]
    units = channels.units[group]
    assert group not in channels.frozen
    assert pattern in MLPS or units == HEADS
    keep = torch.tensor(sorted(data.draw(st.sets(st.integers(0, units - 1), min_size=1, max_size=units - 1))))
    module = narrowed_module(captured, {group: keep})
    mask = torch.zeros(units, per)
    mask[keep] = 1
    parent[1].kept.copy_(mask.flatten())
    x = torch.randn(2, *SHAPE[1:], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got, want = module(x), parent(x)
    assert float((got - want).abs().max()) <= 1e-4 * float(want.abs().max())
    assert module.get_submodule("1_proj").in_channels == len(keep) * per


def halves(part):
    """A part in two branches of hidden channels, or whole if it has none; and whether heads are divided."""
    alone = SegmentDesign(part.name, part.start, part.end, (BranchScale("cpu", part.depth, part.width, align=1),))
    try:
        tensor = divided_tensor(part.graph, hidden=True)
    except StretchError:
        return alone, False
    channels, step = width(part.graph.by_name[tensor].shape), channel_step(part.graph, tensor)
    at = channels // 2 // step * step
    if not 0 < at < channels:
        return alone, False
    ranges = (("cpu", (0, at)), ("gpu", (at, channels)))
    branches = tuple(BranchScale(name, part.depth, part.width, align=1, channels=both) for name, both in ranges)
    needed = needed_channels(part.graph, {tensor: Channels(0, 1)})
    heads = any(op.kind == "attention" and len(needed.get(op.name, ())) < width(op.shape) for op in part.graph.ops if op.name in needed)
    return SegmentDesign(part.name, part.start, part.end, branches, "partial_sums"), heads


def divided(module, shape):
    """The network with the hidden channels of every part in two halves, and the number of parts divided by heads."""
    captured = capture(module, shape, "net")
    cuts = frozenset(cut_points(captured.graph))
    parts = [halves(part) for stage in split_segments(captured.graph) for part in divide(captured.graph, stage, cuts)]
    return build(captured, BranchDesign("net", "any", tuple(design for design, _ in parts))), sum(heads for _, heads in parts)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("pattern", [Fused, Interleaved, ShiftedWindows], ids=lambda pattern: pattern.__name__)
def test_heads_that_are_divided_add_up_to_the_original(pattern):
    module = network(pattern, Mlp, pattern)
    model, heads = divided(module, SHAPE)
    assert heads == 2
    x = torch.randn(2, *SHAPE[1:], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert float((model(x) - module(x)).abs().max()) <= 1e-4 * float(module(x).abs().max())
