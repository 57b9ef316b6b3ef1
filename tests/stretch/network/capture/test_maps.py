"""Tensors as axes over a feature map, token networks as operators on maps, and the structure of returned results."""

import itertools
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError, UsageError
from stretch.network.capture import capture
from stretch.network.capture.axes import Axes, Factor, Unsupported, map_axes, rearrangement
from stretch.network.capture.exported import capture_runnable
from stretch.network.capture.maps import broadcast_over
from stretch.network.capture.results import leaves, named_outputs, rebuild, tensors, walk_leaves
from stretch.operators.lowerings import make_module
from stretch.planning.network.segments import channel_groups
from tests.stretch.network.capture.patterns import Calling
from tests.stretch.network.capture.test_runnable import agreeing
from tests.stretch.network.capture.token_patterns import ATTENTIONS, CHANNELS, HEADS, LAST, MLPS, Tokens, network


def element_numbers(axes, shape):
    """Return the element numbers, in the order that the axes state, of a map whose elements are numbered."""
    n, c, h, w = shape
    numbers = np.arange(n * c * h * w).reshape(n, c, h * w)
    stride = {"image": c * h * w, "channel": h * w, "pixel": 1}
    full = np.full(axes.shape, axes.first * h * w)
    for place, axis in enumerate(axes.axes):
        inside = np.zeros(1, int)
        for factor in axis:
            inside = np.add.outer(inside, np.arange(factor.size) * factor.step * stride[factor.of]).ravel()
        full = full + inside.reshape([-1 if i == place else 1 for i in range(len(axes.axes))])
    return numbers.ravel()[full]


def factorisations(size):
    return [(a, b, size // a // b) for a in range(1, size + 1) if size % a == 0 for b in range(1, size // a + 1) if size // a % b == 0]


@given(st.data())
def test_reshaped_permuted_and_cut_axes_locate_each_element(data):
    shape = data.draw(st.sampled_from([(1, 12, 4, 6), (2, 8, 2, 2), (1, 6, 1, 9)]))
    axes, array = map_axes(shape), np.arange(np.prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        match data.draw(st.sampled_from(["reshape", "permute", "cut"])):
            case "permute":
                order = data.draw(st.permutations(range(array.ndim)))
                axes, array = axes.permute(order), array.transpose(order)
            case "reshape":
                wanted = [data.draw(st.sampled_from(factorisations(size))) for size in array.shape][:4]
                wanted = [*itertools.chain(*wanted), *array.shape[4:]]
                reshaped = axes.reshape(tuple(wanted))
                if reshaped is not None:
                    axes, array = reshaped, array.reshape(wanted)
                reshaped = axes.reshape((array.shape[0], int(np.prod(array.shape[1:]))))
                if reshaped is not None and data.draw(st.booleans()):
                    axes, array = reshaped, array.reshape(array.shape[0], -1)
            case "cut":
                axis = data.draw(st.integers(0, array.ndim - 1))
                start = data.draw(st.integers(0, array.shape[axis] - 1))
                size = data.draw(st.integers(1, array.shape[axis] - start))
                reshaped = axes.cut(axis, start, size)
                if reshaped is not None:
                    axes, array = reshaped, array.take(range(start, start + size), axis)
    assert axes.shape == array.shape
    np.testing.assert_array_equal(element_numbers(axes, shape), array)


def test_cut_within_a_head_or_of_pixels_has_no_axes():
    heads = Axes(((Factor("channel", 3, 1), Factor("channel", 2, 6)),))
    assert map_axes((1, 12, 2, 2)).reshape((1, 12, 4)).cut(2, 0, 2) is heads.cut(0, 1, 3) is None


@given(st.permutations(range(3)), st.sampled_from([(2, 3, 4), (5, 1, 2), (3, 3, 3)]))
def test_rearrangement_moves_pixels_into_the_requested_order(order, split):
    array = np.arange(np.prod(split))
    seen = map_axes((1, 1, 1, len(array))).reshape((1, 1, *split))
    assert seen is not None
    wanted = seen.permute((0, 1, *[axis + 2 for axis in order]))
    steps = rearrangement(list(zip(wanted.factors("pixel"), wanted.sort_factors().factors("pixel"), strict=True)))
    np.testing.assert_array_equal(array.reshape(steps[0]).transpose(steps[1]).ravel(), array.reshape(split).transpose(order).ravel())


def kinds(function):
    """Return the kinds of the operators after the input; check that the graph and the network agree."""
    layers = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
    captured = agreeing(Calling(lambda x, layers: function(layers(x)), layers).eval())
    return [op.kind for op in captured.graph.ops[1:]]


CHAIN = ["conv", "batch_norm", "relu"]


def whole_and_part(x):
    a, b = x.view(x.shape[0], 2, 4, 8, 8).unbind(1)
    return torch.cat([x, a * b], 1)


@pytest.mark.parametrize(
    ("function", "added"),
    [
        # filters are in another order
        (lambda x: x.view(x.shape[0], 2, 4, 8, 8).transpose(1, 2).reshape(x.shape[0], 8, 8, 8), []),
        # a tensor that is computed in full is not computed again in parts
        (whole_and_part, ["slice", "slice", "mul", "concat"]),
        # pixels are rearranged once, before the operators that read them
        (lambda x: x.view(x.shape[0], 8, 2, 4, 8).transpose(2, 3).reshape(x.shape[0], 8, 4, 16).relu(), ["rearrange", "relu"]),
    ],
    ids=["channels", "parts", "pixels"],
)
def test_another_order_of_a_map_takes_the_fewest_operators(function, added):
    assert sorted(kinds(function)) == sorted([*CHAIN, *added])


class ManualAttention(Tokens):
    """Attention with separate layers for q, k and v; functions change the scores before and after the softmax."""

    def __init__(self, before=lambda s: s, after=lambda s: s, same=False):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(CHANNELS, CHANNELS) for _ in range(3))
        self.mix = nn.Linear(HEADS, HEADS)
        self.before, self.after, self.same = before, after, same

    def hidden(self, x):
        n, t, c = x.shape
        q, k, v = (layer(x).view(n, t, HEADS, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return (self.shares(q, q if self.same else k) @ v).transpose(1, 2).reshape(n, t, c)

    def shares(self, q, k):
        return self.after(self.before(q @ k.transpose(-2, -1)).softmax(-1))


class KeysFirst(ManualAttention):
    """Scores as keys times queries, plus a learned bias and a constant."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.rand(1, HEADS, 64, 64, generator=torch.Generator().manual_seed(1)))

    def shares(self, q, k):
        return (k @ q.transpose(-2, -1) + self.bias + torch.eye(64).cumsum(0)).softmax(-2).transpose(-2, -1)


FACTORS = torch.rand(HEADS, 1, 1, generator=torch.Generator().manual_seed(0))
UNDERSTOOD = [
    ManualAttention(),
    ManualAttention(lambda s: s * 0.3 / 2),
    ManualAttention(lambda s: s * FACTORS + torch.eye(64)),
    KeysFirst(),
    ManualAttention(lambda s: (s - torch.eye(64)) * 0.5, lambda s: s.clone().contiguous()),
]
OTHERS = [
    ManualAttention(lambda s: s + s.mean()),
    ManualAttention(lambda s: s.relu()),
    ManualAttention(after=lambda s: s * 0.5),
    ManualAttention(after=lambda s: s - s.mean(-1, keepdim=True)),
    ManualAttention(lambda s: s.transpose(-2, -1) + torch.eye(64)),
    ManualAttention(same=True),
]


@pytest.mark.representatives(6)
@pytest.mark.parametrize("block", [*UNDERSTOOD, *OTHERS])
def test_scores_are_followed_or_computed_by_torch_and_never_wrong(block):
    captured = agreeing(network(lambda: block))
    if block in UNDERSTOOD:
        assert captured.opaque == ()
        assert sum(op.kind == "attention" for op in captured.graph.ops) == 1


CONSTANTS_SHAPE = (1, 6, 2, 4)


@given(st.permutations(range(5)), st.tuples(*[st.booleans()] * 5), st.integers(0, 4))
def test_constant_is_broadcast_on_a_map_as_on_the_tensor_itself(order, whole, cut):
    axes = map_axes(CONSTANTS_SHAPE).reshape((1, 3, 2, 2, 4))
    assert axes is not None
    axes = axes.permute(order)
    sizes = tuple(size if keep else 1 for size, keep in zip(axes.shape, whole, strict=True))[cut:]
    tensor = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    x = torch.randn(CONSTANTS_SHAPE, generator=torch.Generator().manual_seed(1))
    seen = x.reshape(1, 3, 2, 2, 4).permute(order)
    want = (seen + tensor).permute(*np.argsort(order)).reshape(CONSTANTS_SHAPE)
    result = broadcast_over(tensor, axes, ("channel", "pixel"))
    assert result is not None
    got = (x.reshape(6, 8) + result).reshape(CONSTANTS_SHAPE)
    assert torch.equal(got, want)


def test_constant_that_differs_between_pixels_is_refused_where_only_channels_are_allowed():
    axes = map_axes(CONSTANTS_SHAPE)
    with pytest.raises(Unsupported):
        broadcast_over(torch.ones(4), axes, ("channel",))
    assert broadcast_over(torch.ones(6, 1, 1), axes, ("channel",)).shape == (6,)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("pattern", [*MLPS, *ATTENTIONS, *LAST], ids=lambda pattern: pattern.__name__)
def test_tokens_and_channels_last_become_pixels_and_channels_of_maps(pattern):
    """No operator is opaque, only channels of inputs and classes are frozen, and the graph computes what the network does."""
    captured = agreeing(network(pattern))
    assert captured.opaque == ()
    # attention is one operator in every form of code
    assert [op.attrs["heads"] for op in captured.graph.ops if op.kind == "attention"] == [HEADS] * (pattern in ATTENTIONS)
    frozen = {
        name for name, pieces in channel_groups(captured.graph).pieces.items() if pieces[0][0] in channel_groups(captured.graph).frozen
    }
    assert not {name for name in frozen if captured.graph.by_name[name].kind in ("conv", "linear", "add")}


Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Answer:
    scores: Any
    more: Any = None


class Net(nn.Module):
    """Return two results in the container that `around` makes."""

    def __init__(self, around):
        super().__init__()
        self.first, self.second, self.around = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1), around

    def forward(self, x):
        y = self.first(x).relu()
        return self.around(y, self.second(y))


KINDS = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [b, a],
    "nested": lambda a, b: {"out": b, "maps": [a, (b,)]},
    "ordered": lambda a, b: OrderedDict(out=b, aux=a),
    "named tuple": lambda a, b: Pair(a, b),
    "dataclass": lambda a, b: Answer(a, {"q": b}),
    "twice": lambda a, b: (a, a),
    "pieces": lambda a, b: b.chunk(2, 1),
    "constants": lambda a, b: {"out": b, "name": "net", "none": None, "size": 3},
    "one in a tuple": lambda a, b: (b,),
}


@pytest.mark.parametrize("around", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("captures", [capture, lambda module, shape: capture_runnable(module, shape, "net")], ids=["capture", "exported"])
def test_graph_computes_every_result_in_the_structure_of_the_network(captures, around):
    module = Net(around).eval()
    if captures is not capture and around is KINDS["dataclass"]:
        pytest.skip("torch.export takes registered dataclasses alone")
    captured = captures(module, (1, 3, 8, 8))
    x = torch.randn(1, 3, 8, 8)
    values = {"input": x}
    with torch.no_grad():
        want = module(x)
        for op in captured.graph.ops[1:]:
            layer = make_module(op, captured.graph.input_shapes(op)).eval()
            layer.load_state_dict(captured.weights.get(op.name, {}), strict=False)
            values[op.name] = layer(*(values[name] for name in op.inputs))
    got = captured.returned.substitute(values)
    assert type(got) is type(want)
    for (name, actual), (expected_name, expected) in zip(walk_leaves(got), walk_leaves(want), strict=True):
        assert name == expected_name
        assert torch.allclose(actual, expected, atol=1e-5) if isinstance(expected, torch.Tensor) else actual == expected
    assert len(named_outputs(want, captured.returned)) == len(captured.returned.results)
    assert len(set(captured.graph.outputs)) == len(captured.graph.outputs)


def test_returned_constants_are_reported():
    captured = capture(Net(lambda a, b: {"out": b, "table": torch.ones(2), "none": None}), (1, 3, 8, 8))
    (warning,) = captured.warnings
    assert warning.startswith("`table`, `none` of what the network returns")
    assert torch.equal(captured.returned.template["table"], torch.ones(2))


def test_input_that_is_returned_stays_in_the_structure():
    class Passing(nn.Module):
        def forward(self, x):
            return x, x.relu()

    captured = capture(Passing(), (1, 3, 4, 4))
    assert captured.graph.outputs == ("relu",)
    assert captured.returned.substitute({"input": 1, "relu": 2}) == (1, 2)
    assert "unchanged input" in captured.warnings[0]


RING = []
RING.append(RING)


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        (lambda: capture(Calling(lambda x, table: table(x).sum(1), nn.Embedding(10, 4)), (1, 6)), UsageError, "takes whole numbers"),
        (lambda: capture(Net(lambda a, b: {"none": None}), (1, 3, 8, 8)), StretchError, "returns no tensor"),
        (lambda: tensors(RING), StretchError, "nested"),
    ],
)
def test_integer_input_no_result_and_recursive_structure_are_refused(call, error, reason):
    with pytest.raises(error, match=reason) as refused:
        call()
    assert error is not UsageError or "embedding" in refused.value.hint


def containers(inner):
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["out", "aux", "a b", 0]), inner, max_size=3),
        st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Answer, inner, inner),
    )


@given(st.recursive(st.one_of(st.integers(), st.none(), st.text(max_size=2)), containers, max_leaves=12))
def test_structure_rebuilt_from_its_leaves_is_equal_and_of_the_same_types(structure):
    again = rebuild(structure, iter([leaf for _, leaf in leaves(structure)]))
    assert again == structure
    assert type(again) is type(structure)
