import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from predictors.channels import Groups, OperatorView
from predictors.graph import Op
from predictors.operators import kind_of
from predictors.rows import Rows, height, window_rows
from predictors.slices import Channels, columns, filters, pieces, weight_rows, width
from tests.effort import examples
from tests.predictors.networks import convolution
from tests.scheduler.delegates.graphs import KIND_NAMES, computed, graphs, loaded


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.booleans()), min_size=2, max_size=6), st.data())
def test_unifying_groups_keeps_the_size_of_each_piece(given_groups, data):
    groups = Groups()
    pieces = [(groups.new(units, frozen), 12 // units) for units, frozen in given_groups]
    for _ in range(len(pieces)):
        assert groups.unify(data.draw(st.sampled_from(pieces)), data.draw(st.sampled_from(pieces)))
    assert all(groups.size(piece) == 12 for piece in pieces)


def test_tied_pieces_have_equal_numbers_of_units_with_their_own_sizes():
    groups = Groups()
    queries, values, odd = (groups.new(8), 1), (groups.new(12), 1), (groups.new(10), 1)
    assert groups.tie([queries, values], 4)
    (unit, per), found = groups.find(queries), groups.find(values)
    assert (groups.units[unit], per, found) == (4, 2, (unit, 3))
    assert not groups.tie([queries, odd], 4)
    groups.freeze((values,))
    assert groups.frozen[groups.find(queries)[0]]


@pytest.mark.parametrize(
    ("groups", "wanted", "reads", "computes"),
    [
        (1, Channels(2, 5), Channels(0, 6), Channels(2, 5)),
        (6, Channels(2, 5), Channels(1, 3), Channels(2, 6)),
        (3, Channels(4, 8), Channels(2, 4), Channels(4, 8)),
        (3, Channels(5, 7), Channels(2, 4), Channels(4, 8)),
    ],
)
def test_filters_read_all_channels_or_the_channels_of_whole_groups(groups, wanted, reads, computes):
    attrs = convolution("y", "x", 12, groups=groups).attrs
    result = filters(OperatorView(((1, 6, 4, 4),), attrs, (1, 12, 4, 4)), wanted)
    assert (result.reads, result.computes) == ((reads,), computes)
    assert result.attrs["out_channels"] == len(computes)
    assert result.attrs["groups"] == (groups * len(computes) // 12 if groups > 1 else 1)


def test_pieces_outside_the_range_are_not_read_and_features_of_more_than_two_axes_are_not_cut():
    result = pieces(OperatorView(((1, 4), (1, 3), (1, 2)), {}, (1, 9)), Channels(5, 7))
    assert ([len(read) for read in result.reads], result.reads[1]) == ([0, 2, 0], Channels(1, 3))
    attrs = {"out_features": 8, "bias": True}
    assert columns(OperatorView(((1, 5),), attrs, (1, 8)), Channels(2, 4)).attrs["out_features"] == 2
    assert columns(OperatorView(((1, 7, 5),), attrs, (1, 7, 8)), Channels(2, 4)).computes == Channels(0, 7)


def by_torch(op, weights, *arrays):
    """Output of an operator's torch module."""
    torch = pytest.importorskip("torch")
    from stretch.operators.lowerings import make_module

    module = loaded(make_module(op, [array.shape for array in arrays]), weights)
    with torch.inference_mode():
        return module(*[torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]).numpy()


@pytest.mark.torch
@pytest.mark.parametrize("kind", KIND_NAMES)
@settings(max_examples=examples(12))
@given(data=st.data())
def test_channels_computed_from_their_slice_equal_the_channels_of_the_full_result(kind, data):
    graph, weights, x = data.draw(graphs(kind))
    op = graph.by_name["y"]
    start = data.draw(st.integers(0, width(op.shape) - 1))
    wanted = Channels(start, data.draw(st.integers(start + 1, width(op.shape))))
    part, values = graph.op_slice(op, wanted), computed(graph, weights, x)
    assert part.computes.start <= wanted.start < wanted.stop <= part.computes.stop
    parts = [values[name][:, read.start : read.stop] for name, read in zip(op.inputs, part.reads, strict=True) if len(read)]
    rows = {key: weight_rows(part.computes, width(op.shape), len(value)) for key, value in weights.get("y", {}).items()}
    mapping = {key: weights["y"][key][cut.start : cut.stop] for key, cut in rows.items()}
    enough = len(parts) >= kind_of(kind).min_inputs
    got = by_torch(Op("y", kind, op.inputs, part.attrs), mapping, *parts) if enough else parts[0]
    got = got[:, wanted.start - part.computes.start :][:, : len(wanted)]
    expected = values["y"][:, wanted.start : wanted.stop]
    # sums in another order differ by an error relative to their largest terms, which may cancel
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(values["y"]).max()))


@pytest.mark.representatives(14)
@pytest.mark.torch
@pytest.mark.parametrize("kind", [name for name in KIND_NAMES if kind_of(name).additive])
@settings(max_examples=examples(12))
@given(data=st.data())
def test_additive_operator_of_a_sum_equals_the_sum_of_the_operator_of_each_term(kind, data):
    graph, weights, x = data.draw(graphs(kind))
    op, additive = graph.by_name["y"], kind_of(kind).additive
    (value,) = (computed(graph, weights, x)[name] for name in op.inputs)
    share = np.random.default_rng(3).normal(size=value.shape).astype(np.float32)
    current = weights.get("y", {})

    without_offsets = {key: np.zeros_like(array) if key in additive.offsets else array for key, array in current.items()}
    second = share if additive.once else by_torch(op, without_offsets, share)
    np.testing.assert_allclose(by_torch(op, current, value - share) + second, by_torch(op, current, value), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("padding", "rows", "reads", "above", "below"),
    [
        ((1, 1, 1, 1), Rows(0, 2), Rows(0, 4), 1, 0),
        ((1, 1, 1, 1), Rows(2, 3), Rows(3, 6), 0, 0),
        ((1, 1, 1, 1), Rows(3, 5), Rows(5, 9), 0, 1),
        # a window inside the padding reads no row
        ((6, 1, 0, 1), Rows(0, 1), Rows(0, 0), 3, 0),
    ],
)
def test_window_reads_its_halo_and_pads_only_where_the_image_ends(padding, rows, reads, above, below):
    band = window_rows([(1, 4, 9, 9)], {"kernel": (3, 3), "stride": (2, 2), "padding": padding}, rows)
    assert (band.reads, band.attrs["padding"]) == ((reads,), (above, 1, below, 1))


@pytest.mark.parametrize(("kernel", "dilation", "reads", "skip"), [(2, 1, Rows(14, 17), 1), (3, 2, Rows(12, 17), 2)])
def test_windows_cut_by_the_last_row_are_computed_after_a_complete_window(kernel, dilation, reads, skip):
    short = {"kernel": (kernel, kernel), "stride": (2, 2), "dilation": (dilation, 1), "padding": (0, 0, 0, 0), "ceil_mode": True}
    band = window_rows([(1, 4, 17, 17)], short, Rows(8, 9))
    assert (band.reads, band.skip, band.attrs["padding"]) == ((reads,), skip, (0, 0, 0, 0))
    assert window_rows([(1, 4, 17, 17)], short, Rows(0, 9)).skip == 0


@pytest.mark.torch
@pytest.mark.parametrize("kind", KIND_NAMES)
@settings(max_examples=examples(12))
@given(data=st.data())
def test_band_computed_from_its_rows_equals_the_band_of_the_full_result(kind, data):
    graph, weights, x = data.draw(graphs(kind))
    op = graph.by_name["y"]
    start = data.draw(st.integers(0, height(op.shape) - 1))
    stop = data.draw(st.integers(start + 1, height(op.shape)))
    band = graph.op_rows(op, start, stop)
    values = computed(graph, weights, x)
    parts = [
        values[name][:, :, rows.start : rows.stop] if values[name].ndim == 4 else values[name]
        for name, rows in zip(op.inputs, band.reads, strict=True)
    ]
    assume(all(0 not in part.shape for part in parts))
    built = by_torch(Op("y", kind, op.inputs, band.attrs), weights.get("y", {}), *parts)
    expected = values["y"]
    if built.ndim == 4:
        built, expected = built[:, :, band.skip : band.skip + stop - start], expected[:, :, start:stop]
    np.testing.assert_allclose(built, expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max(initial=0)))
