"""What holds for every kind of operator."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import KERNEL_KINDS
from predictors.graph import Op, OpGraph
from predictors.kinds import Kind, per_channel, pixels
from predictors.operators import kind_of
from tests.scheduler.delegates.graphs import KIND_NAMES, graphs


def test_kind_that_says_nothing_of_itself_is_safe():
    """Its channels are frozen, all its rows are read, and it costs what moving its tensors costs."""
    kind = Kind()
    assert kind.work([(2, 6, 4, 8)], {}, (2, 6, 4, 8)) == ("elementwise", 1, 1, 6, 1, 64, 1)
    assert (kind.macs([], {}, ()), kind.weights([], {}), kind.dense({}), kind.traits) == (0, {}, False, frozenset())


def test_positions_count_every_image_of_a_batch():
    assert pixels((2, 6, 4, 8)) == 64
    assert per_channel("copy")([], {}, (3, 5)) == ("copy", 1, 1, 5, 1, 3, 1)


@given(st.sampled_from(KIND_NAMES), st.data())
def test_kernel_of_any_operator_is_of_a_known_kind_and_covers_its_result(name, data):
    graph, _, _ = data.draw(graphs(name))
    op = graph.by_name["y"]
    work = kind_of(name).work(graph.input_shapes(op), op.attrs, op.shape)
    assert work.kind in KERNEL_KINDS
    assert min(work[1:]) >= 1
    assert work.pixels * work.out_channels * work.groups == max(1, _elements(op.shape))


def _elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


@given(st.sampled_from(KIND_NAMES), st.data())
def test_operator_that_is_scaled_to_its_own_width_is_itself(name, data):
    from predictors.channels import Narrowed

    graph, _, _ = data.draw(graphs(name))
    op = graph.by_name["y"]
    channels = graph.input_shapes(op)[0][1]
    same = Narrowed(channels, channels, op.shape[1], lambda channel: channel)
    assert dict(kind_of(name).scaled(op.attrs, same)) == dict(op.attrs)


def test_graph_refuses_rows_that_an_operator_does_not_have():
    graph = OpGraph.build("g", [Op("x", "input", attrs={"shape": (1, 3, 8, 8)}), Op("y", "relu", ("x",))], "y")
    with pytest.raises(Exception, match="has 8 rows, not rows 4 to 9"):
        graph.op_rows(graph.by_name["y"], 4, 9)
