"""Slices of channels: what an operator computes from the channels that its kind states is what it computes from all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.channels import OperatorView
from predictors.graph import Op
from predictors.kinds import kinds
from predictors.operators import kind_of
from predictors.slices import Additive, Channels, columns, filters, pieces, weight_rows, width
from tests.effort import examples
from tests.predictors.test_rows import _loaded, _values
from tests.scheduler.delegates.graphs import KIND_NAMES, graphs

CONV = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "bias": False}


def seen(attrs, shape, *inputs):
    return OperatorView(inputs, attrs, shape)


@pytest.mark.parametrize(
    ("groups", "wanted", "reads", "computes"),
    [
        (1, Channels(2, 5), Channels(0, 6), Channels(2, 5)),
        (6, Channels(2, 5), Channels(1, 3), Channels(2, 6)),
        (3, Channels(4, 8), Channels(2, 4), Channels(4, 8)),
        (3, Channels(5, 7), Channels(2, 4), Channels(4, 8)),
    ],
)
def test_filters_read_all_channels_or_those_of_whole_groups(groups, wanted, reads, computes):
    attrs = CONV | {"out_channels": 12, "groups": groups}
    result = filters(seen(attrs, (1, 12, 4, 4), (1, 6, 4, 4)), wanted)
    assert (result.reads, result.computes) == ((reads,), computes)
    assert result.attrs["out_channels"] == len(computes)
    assert result.attrs["groups"] == (groups * len(computes) // 12 if groups > 1 else 1)


def test_pieces_beside_the_range_are_not_read():
    result = pieces(seen({}, (1, 9), (1, 4), (1, 3), (1, 2)), Channels(5, 7))
    assert [len(read) for read in result.reads] == [0, 2, 0]
    assert result.reads[1] == Channels(1, 3)


def test_features_of_more_axes_than_two_are_no_channels():
    attrs = {"out_features": 8, "bias": True}
    assert columns(seen(attrs, (1, 8), (1, 5)), Channels(2, 4)).attrs["out_features"] == 2
    assert columns(seen(attrs, (1, 7, 8), (1, 7, 5)), Channels(2, 4)).computes == Channels(0, 7)


@pytest.mark.torch
@pytest.mark.parametrize("kind", KIND_NAMES)
@settings(max_examples=examples(12))
@given(data=st.data())
def test_channels_computed_from_their_slice_are_those_of_the_whole(kind, data):
    torch = pytest.importorskip("torch")
    from stretch.operators.lowerings import make_module

    graph, weights, x = data.draw(graphs(kind))
    op = graph.by_name["y"]
    start = data.draw(st.integers(0, width(op.shape) - 1))
    wanted = Channels(start, data.draw(st.integers(start + 1, width(op.shape))))
    part, values = graph.op_slice(op, wanted), _values(graph, weights, x)
    assert part.computes.start <= wanted.start < wanted.stop <= part.computes.stop
    parts = [values[name][:, read.start : read.stop] for name, read in zip(op.inputs, part.reads, strict=True) if len(read)]
    rows = {key: weight_rows(part.computes, width(op.shape), len(value)) for key, value in weights.get("y", {}).items()}
    mapping = {key: value[rows[key].start : rows[key].stop] for key, value in weights.get("y", {}).items()}
    if len(parts) < kind_of(kind).min_inputs:
        got = parts[0]
    else:
        module = _loaded(make_module(Op("y", kind, op.inputs, part.attrs), [part.shape for part in parts]), mapping)
        with torch.inference_mode():
            got = module(*[torch.from_numpy(np.ascontiguousarray(part)) for part in parts]).numpy()
    got = got[:, wanted.start - part.computes.start :][:, : len(wanted)]
    expected = values["y"][:, wanted.start : wanted.stop]
    # sums in another order differ relative to their largest terms, which may cancel
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(values["y"]).max()))


@pytest.mark.representatives(14)
@pytest.mark.torch
@pytest.mark.parametrize("kind", [name for name in KIND_NAMES if kind_of(name).additive])
@settings(max_examples=examples(12))
@given(data=st.data())
def test_what_is_done_to_a_sum_may_be_done_to_its_terms(kind, data):
    torch = pytest.importorskip("torch")
    from stretch.operators.lowerings import make_module

    graph, weights, x = data.draw(graphs(kind))
    op, additive = graph.by_name["y"], kind_of(kind).additive
    (value,) = (_values(graph, weights, x)[name] for name in op.inputs)
    share = np.random.default_rng(3).normal(size=value.shape).astype(np.float32)
    current = weights.get("y", {})

    def done(module_weights, array):
        module = _loaded(make_module(op, graph.input_shapes(op)), module_weights)
        with torch.inference_mode():
            return module(torch.from_numpy(array)).numpy()

    rest = {key: np.zeros_like(array) if key in additive.offsets else array for key, array in current.items()}
    second = share if additive.once else done(rest, share)
    np.testing.assert_allclose(done(current, value - share) + second, done(current, value), rtol=1e-3, atol=1e-4)


def test_kinds_that_need_the_whole_sum_are_those_that_are_not_linear():
    needs = {name for name in kinds if kind_of(name).additive is None and not kind_of(name).dense({"groups": 1})}
    assert {"relu", "sigmoid", "mul", "max_pool", "softmax", "layer_norm"} <= needs
    assert kind_of("batch_norm").additive == Additive(offsets=("bias", "running_mean"))
