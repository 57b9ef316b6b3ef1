"""Nodes whose inputs and attributes are anything: they are read, or refused in one sentence."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from stretch.models.onnx.site import RULES
from tests.effort import examples
from tests.stretch.models.onnx.graphs import net

pytestmark = pytest.mark.torch

KINDS = [np.float32, np.int64, np.int32, np.int8, np.uint8, np.bool_]
SIZES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
NUMBERS = st.one_of(st.integers(-9, 9), st.sampled_from([2**31, -(2**31), 2**62, -(2**63)]))
VALUES = st.one_of(
    NUMBERS,
    st.floats(width=32),
    st.lists(NUMBERS, min_size=1, max_size=8),
    st.lists(st.floats(width=32), min_size=1, max_size=3),
    st.sampled_from(["linear", "SAME_UPPER", "add", "reflect", "\udcff", ""]).map(lambda word: word.encode(errors="ignore")),
)


def attributes(op):
    """Names of the attributes that an operator has."""
    schemas = [each for each in onnx.defs.get_all_schemas_with_history() if each.name == op and each.domain == ""]
    return sorted({name for each in schemas for name in each.attributes}) or [
        "alpha",
        "axis",
        "transB",
        "channels_last",
        "kernel_shape",
        "opset",
    ]


@st.composite
def stored(draw):
    """A stored tensor of any type, of small numbers or wild ones."""
    kind, shape = draw(st.sampled_from(KINDS)), draw(SIZES)
    numbers = np.random.default_rng(draw(st.integers(0, 9))).integers(-3, 9, shape)
    if draw(st.booleans()) and kind in (np.float32, np.int64):
        numbers = numbers * draw(st.sampled_from([1e30, 2**40, np.nan] if kind == np.float32 else [2**40]))
    with np.errstate(invalid="ignore"):
        return np.asarray(numbers).astype(kind)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(sorted(RULES)), st.data())
def test_node_with_anything_is_read_or_refused_in_one_sentence(tmp_path_factory, op, data):
    domain, _, name = op.rpartition(".")
    names = attributes(name)
    chosen = data.draw(st.lists(st.sampled_from(names), max_size=4, unique=True)) if names else []
    attrs = {each: data.draw(VALUES) for each in chosen}
    reads, tensors = [], {"s": np.float32(0.1), "z": np.uint8(3)}
    for i in range(data.draw(st.integers(1, 9))):
        what = data.draw(st.sampled_from(["x", "q", "i", "", "s", "z", None, None, None]))
        if what is None:
            tensors[f"w{i}"] = data.draw(stored())
        reads.append(f"w{i}" if what is None else what)
    before = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("Cast", ["x"], ["i"], to=7)]
    node = helper.make_node(name, reads, ["y", "other"][: data.draw(st.integers(1, 2))], domain=domain, **attrs)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    path = tmp_path_factory.getbasetemp() / "anything.onnx"
    onnx.save(net(*before, node, stored=tensors, shape=shape, opset=data.draw(st.sampled_from([9, 11, 13, 17, 22]))), str(path))
    try:
        read_module(path)
    except StretchError as error:
        message = error.message
        assert "\n" not in message
