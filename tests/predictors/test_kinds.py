"""Shapes and costs of operators, with torch and written-out loops as oracles."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UnknownNameError
from predictors.kinds import ACTIVATIONS, KINDS, integer, ints, kind_of, number

pair = st.tuples(st.integers(1, 5), st.integers(1, 5))
strides = st.tuples(st.integers(1, 3), st.integers(1, 3))


def test_unknown_kind_names_the_closest():
    with pytest.raises(UnknownNameError) as caught:
        kind_of("max_poll")
    assert caught.value.hint == "did you mean `max_pool`?"


@pytest.mark.parametrize(
    ("read", "attrs", "message"),
    [
        (ints, {"a": 3}, "not a list of numbers"),
        (integer, {"a": (3,)}, "not a whole number"),
        (number, {"a": "x"}, "not a number"),
    ],
)
def test_attribute_of_the_wrong_type_is_refused(read, attrs, message):
    with pytest.raises(TypeError, match=message):
        read(attrs, "a")


@pytest.mark.torch
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(3, 17), st.integers(3, 17),
    pair, strides, st.tuples(st.integers(0, 2), st.integers(0, 2)), st.tuples(st.integers(1, 2), st.integers(1, 2)), st.booleans(),
)  # fmt: skip
def test_convolution_agrees_with_torch(batch, groups, cin, cout, height, width, kernel, stride, padding, dilation, bias):
    import torch

    if height + 2 * padding[0] < dilation[0] * (kernel[0] - 1) + 1 or width + 2 * padding[1] < dilation[1] * (kernel[1] - 1) + 1:
        return
    module = torch.nn.Conv2d(groups * cin, groups * cout, kernel, stride, padding, dilation, groups, bias)
    shape = (batch, groups * cin, height, width)
    attrs = {
        "out_channels": groups * cout, "kernel": kernel, "stride": stride, "padding": (*padding, *padding), "dilation": dilation,
        "groups": groups, "bias": bias,
    }  # fmt: skip
    conv = kind_of("conv")
    out = conv.shape([shape], attrs)
    assert out == tuple(module(torch.zeros(shape)).shape)
    assert conv.weights([shape], attrs) == {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert conv.macs([shape], attrs, out) == prod(out) * module.weight[0].numel()


@pytest.mark.torch
@given(st.sampled_from(["max_pool", "avg_pool"]), st.integers(1, 20), st.integers(1, 20), pair, strides, st.booleans(), st.data())
def test_pooling_agrees_with_torch_also_in_ceil_mode(kind, height, width, kernel, stride, ceil_mode, data):
    import torch

    padding = (data.draw(st.integers(0, kernel[0] // 2)), data.draw(st.integers(0, kernel[1] // 2)))
    if height + 2 * padding[0] < kernel[0] or width + 2 * padding[1] < kernel[1]:
        return
    pool = torch.nn.functional.max_pool2d if kind == "max_pool" else torch.nn.functional.avg_pool2d
    expected = pool(torch.zeros(1, 3, height, width), kernel, stride, padding, ceil_mode=ceil_mode)
    attrs = {"kernel": kernel, "stride": stride, "padding": (*padding, *padding), "ceil_mode": ceil_mode}
    assert kind_of(kind).shape([(1, 3, height, width)], attrs) == tuple(expected.shape)


@pytest.mark.torch
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_linear_agrees_with_torch(leading, cin, cout, bias):
    import torch

    module = torch.nn.Linear(cin, cout, bias)
    shape, attrs = (*leading, cin), {"out_features": cout, "bias": bias}
    linear = kind_of("linear")
    out = linear.shape([shape], attrs)
    assert out == tuple(module(torch.zeros(shape)).shape)
    assert linear.weights([shape], attrs) == {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert linear.macs([shape], attrs, out) == prod(leading) * cin * cout


@pytest.mark.torch
@given(st.integers(1, 5), st.booleans())
def test_batch_norm_has_the_weights_of_torch(channels, affine):
    import torch

    module = torch.nn.BatchNorm2d(channels, affine=affine)
    expected = {name: tuple(p.shape) for name, p in module.state_dict().items() if name != "num_batches_tracked"}
    assert kind_of("batch_norm").weights([(1, channels, 2, 2)], {"affine": affine}) == expected


@pytest.mark.torch
@given(st.lists(st.tuples(st.sampled_from([1, 3]), st.sampled_from([1, 4])), min_size=2, max_size=2))
def test_addition_broadcasts_as_torch_does(sizes):
    import torch

    shapes = [(1, a, b, 1) for a, b in sizes]
    assert kind_of("add").shape(shapes, {}) == torch.broadcast_shapes(*shapes)


def test_addition_of_shapes_that_do_not_broadcast_is_refused():
    with pytest.raises(ValueError, match="differ"):
        kind_of("add").shape([(1, 3, 4, 4), (1, 2, 4, 4)], {})
    with pytest.raises(ValueError, match="ranks"):
        kind_of("mul").shape([(1, 3), (1, 3, 1, 1)], {})


def test_concatenation_adds_channels_and_refuses_other_differences():
    assert kind_of("concat").shape([(1, 3, 4, 4), (1, 5, 4, 4)], {}) == (1, 8, 4, 4)
    with pytest.raises(ValueError, match="more than channels"):
        kind_of("concat").shape([(1, 3, 4, 4), (1, 5, 4, 2)], {})


def test_shapes_of_the_operators_without_weights():
    shape = (1, 6, 4, 8)
    assert kind_of("flatten").shape([shape], {}) == (1, 192)
    assert kind_of("global_avg_pool").shape([shape], {"keepdims": True}) == (1, 6, 1, 1)
    assert kind_of("global_max_pool").shape([shape], {"keepdims": False}) == (1, 6)
    assert kind_of("pad").shape([shape], {"padding": (1, 2, 3, 4)}) == (1, 6, 8, 14)
    assert kind_of("slice").shape([shape], {"start": 2, "stop": 5}) == (1, 3, 4, 8)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 3), (2, 7)])
def test_slice_outside_the_channels_is_refused(start, stop):
    with pytest.raises(ValueError, match="are not in"):
        kind_of("slice").shape([(1, 6, 4, 8)], {"start": start, "stop": stop})


@pytest.mark.parametrize("name", [*ACTIVATIONS, "batch_norm", "dropout", "identity", "stochastic_depth"])
def test_elementwise_kinds_keep_the_shape_and_cost_no_products(name):
    kind = KINDS[name]
    assert kind.elementwise
    assert kind.weightless
    assert kind.shape([(1, 6, 4, 8)], {}) == (1, 6, 4, 8)
    assert kind.macs([(1, 6, 4, 8)], {}, (1, 6, 4, 8)) == 0


def test_only_identities_are_identities():
    assert {name for name, kind in KINDS.items() if kind.identity} == {"dropout", "stochastic_depth", "identity"}
