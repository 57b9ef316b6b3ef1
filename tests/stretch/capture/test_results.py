"""What a network returns, in its own structure."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from predictors.errors import StretchError, UsageError  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.capture.results import differences, keyed, leaves, rebuilt, tensors  # noqa: E402
from stretch.capture.runnable import capture_runnable  # noqa: E402
from stretch.operators.lowerings import make_module  # noqa: E402

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Answer:
    scores: Any
    more: Any = None


class Net(nn.Module):
    """Two results around which `around` puts something."""

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


def computed(captured, inputs):
    """Every tensor of a captured graph, operator by operator."""
    values = dict(inputs)
    for op in captured.graph.ops:
        if op.kind != "input":
            module = make_module(op, captured.graph.input_shapes(op)).eval()
            module.load_state_dict(captured.weights.get(op.name, {}), strict=False)
            values[op.name] = module(*(values[name] for name in op.inputs))
    return values


@pytest.mark.parametrize("around", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("way", [capture, lambda module, shape: capture_runnable(module, shape, "net")], ids=["capture", "exported"])
def test_graph_computes_every_result_and_the_structure_is_the_networks_own(way, around):
    module = Net(around).eval()
    if way is not capture and around is KINDS["dataclass"]:
        pytest.skip("torch.export takes registered dataclasses alone")
    captured = way(module, (1, 3, 8, 8))
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        values, want = computed(captured, {"input": x}), module(x)
        got = captured.returned.filled(values)
    assert type(got) is type(want)
    for (name, mine), (same, theirs) in zip(keyed(got), keyed(want), strict=True):
        assert name == same
        assert torch.allclose(mine, theirs, atol=1e-5) if isinstance(theirs, torch.Tensor) else mine == theirs
    assert len(differences(values, want, captured.returned)) == len(captured.returned.results)
    assert len(set(captured.graph.outputs)) == len(captured.graph.outputs)


def test_what_no_operator_computes_is_told():
    captured = capture(Net(lambda a, b: {"out": b, "table": torch.ones(2), "none": None}), (1, 3, 8, 8))
    (said,) = captured.warnings
    assert said.startswith("`table`, `none` of what the network returns")
    assert torch.equal(captured.returned.template["table"], torch.ones(2))


def test_input_that_is_returned_stays_in_the_structure():
    class Passing(nn.Module):
        def forward(self, x):
            return x, x.relu()

    captured = capture(Passing(), (1, 3, 4, 4))
    assert captured.graph.outputs == ("relu",)
    assert captured.returned.filled({"input": 1, "relu": 2}) == (1, 2)
    assert "as it came" in captured.warnings[0]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, x):
        return self.table(x).sum(1)


def test_network_of_whole_numbers_is_refused_in_one_sentence():
    with pytest.raises(UsageError, match="`Words` takes whole numbers") as refused:
        capture(Words(), (1, 6))
    assert "embedding" in refused.value.hint


def test_network_without_a_result_is_refused():
    with pytest.raises(StretchError, match="returns no tensor"):
        capture(Net(lambda a, b: {"none": None}), (1, 3, 8, 8))


def containers(inner):
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["out", "aux", "a b", 0]), inner, max_size=3),
        st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Answer, inner, inner),
    )


STRUCTURES = st.recursive(st.one_of(st.integers(), st.none(), st.text(max_size=2)), containers, max_leaves=12)


@given(STRUCTURES)
def test_a_structure_of_its_own_leaves_is_equal_and_of_the_same_kinds(structure):
    again = rebuilt(structure, iter([leaf for _, leaf in leaves(structure)]))
    assert again == structure
    assert type(again) is type(structure)


def test_structure_that_holds_itself_is_refused():
    ring = []
    ring.append(ring)
    with pytest.raises(StretchError, match="nested"):
        tensors(ring)
