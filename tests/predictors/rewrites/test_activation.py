import pytest

from predictors.graph import Op, OpGraph
from predictors.rewrites import rewrites, rewritten
from predictors.rewrites.activation import INSTEAD


def graph(*kinds):
    ops = [Op("x", "input", attrs={"shape": (1, 8, 4, 4)})]
    for number, kind in enumerate(kinds):
        attrs = {"gelu": {"approximate": "none"}, "elu": {"alpha": 1.0}}.get(kind, {})
        ops.append(Op(f"a{number}", kind, (ops[-1].name,), attrs))
    return OpGraph.build("net", ops, ops[-1].name)


@pytest.mark.parametrize(("kind", "by"), [(kind, by) for kind, others in INSTEAD.items() for by in others])
def test_one_takes_the_place_of_every_other_and_names_and_shapes_stay(kind, by):
    before = graph(kind, "relu", kind)
    after, done = rewritten(before, [f"{kind}={by}"])
    assert done == (f"{kind}={by}",)
    assert [op.kind for op in after.ops] == ["input", by, "relu", by]
    assert OpGraph.build("net", after.ops, after.outputs) == after
    assert [op.name for op in after.ops] == [op.name for op in before.ops]


@pytest.mark.parametrize("name", [name for name in rewrites if not name.startswith("squeeze")])
def test_graph_without_it_is_the_same_graph(name):
    before = graph("relu", "tanh")
    assert rewritten(before, [name]) == (before, ())
