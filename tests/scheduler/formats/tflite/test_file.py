"""TFLite files as they are read."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.formats.flatbuffer import SCALARS
from scheduler.formats.tflite import ANY_OPTIONS, ANY_TFLITE, ANY_TYPES, NAMES, open_tflite

KINDS = {kind: number for number, kind in ANY_TYPES.items()}


def small():
    """Tables of a file that adds stored numbers to `x`."""
    tensors = [
        {"name": "x", "shape": [1, 4], "type": 0},
        {"name": "c", "shape": [4], "type": 0, "buffer": 1},
        {"name": "y", "shape": [1, 4], "type": 0},
    ]
    graph = {"tensors": tensors, "inputs": [0], "outputs": [2], "operators": [{"inputs": [0, 1], "outputs": [2]}]}
    buffers = [{}, {"data": np.arange(4, dtype=np.float32).view(np.uint8)}]
    return {"version": 3, "operator_codes": [{"deprecated_builtin_code": 0}], "subgraphs": [graph], "buffers": buffers}


def save(path, model):
    path.write_bytes(bytes(ANY_TFLITE.encode(model)))
    return path


def test_file_tells_its_operators_and_numbers(tmp_path):
    network = open_tflite(save(tmp_path / "m.tflite", small()))
    assert [(operator.code, operator.inputs, operator.outputs) for operator in network.operators] == [("ADD", (0, 1), (2,))]
    assert (network.inputs, network.outputs) == ((0,), (2,))
    assert network.tensors[0].stored is None
    np.testing.assert_array_equal(network.tensors[1].reals, np.arange(4, dtype=np.float32))


@pytest.mark.parametrize(
    ("kind", "stored", "scales", "axis", "reals"),
    [
        ("int8", np.array([[-2, 3], [4, 5]], np.int8), ([0.5], [1]), 0, [[-1.5, 1.0], [1.5, 2.0]]),
        ("int8", np.array([[-2, 3], [4, 5]], np.int8), ([0.5, 2.0], [0, 0]), 1, [[-1.0, 6.0], [2.0, 10.0]]),
        ("uint8", np.array([[0, 255], [128, 1]], np.uint8), ([1.0], [128]), 0, [[-128, 127], [0, -127]]),
        ("int32", np.array([[1, -2], [3, 4]], np.int32), ([0.25], [0]), 0, [[0.25, -0.5], [0.75, 1.0]]),
        ("float16", np.array([[1.5, -2], [3, 4]], np.float16), None, 0, [[1.5, -2], [3, 4]]),
        ("int4", np.array([0xE1, 0x7F], np.uint8), ([1.0], [0]), 0, [[1, -2], [-1, 7]]),
    ],
)
def test_stored_numbers_are_the_reals_that_they_stand_for(tmp_path, kind, stored, scales, axis, reals):
    model = small()
    tensor = {"name": "c", "shape": [2, 2], "type": KINDS[kind], "buffer": 1}
    if scales is not None:
        tensor["quantization"] = {"scale": scales[0], "zero_point": scales[1], "quantized_dimension": axis}
    model["subgraphs"][0]["tensors"][1] = tensor
    model["buffers"][1] = {"data": stored.reshape(-1).view(np.uint8)}
    result = open_tflite(save(tmp_path / "m.tflite", model)).tensors[1].reals
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, np.array(reals, np.float32))


def change(**places):
    """A change of the tables: `place__key=value`."""

    def changed(model):
        graph = model["subgraphs"][0]
        for place, value in places.items():
            where, _, key = place.partition("__")
            at = {
                "model": model,
                "graph": graph,
                "op": graph["operators"][0],
                "x": graph["tensors"][0],
                "c": graph["tensors"][1],
                "buffer": model["buffers"][1],
                "code": model["operator_codes"][0],
            }[where]
            at[key] = value

    return changed


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (change(model__version=2), "its version is 2, not 3"),
        (change(model__subgraphs=[]), "it has 0 subgraphs, one is taken"),
        (change(graph__operators=[]), "it has no operators"),
        (change(graph__inputs=[7]), "it has inputs that are no tensors"),
        (change(graph__inputs=[1]), "its inputs are stored"),
        (change(graph__outputs=[-1]), "it has outputs that are no tensors"),
        (change(op__opcode_index=3), "it has an operator without a code"),
        (change(op__inputs=[0, 9]), "it has inputs of ADD that are no tensors"),
        (change(op__inputs=[2, 1]), "ADD reads `y`, which nothing writes before it"),
        (change(op__outputs=[0]), "`x` is written twice"),
        (change(op__outputs=[-1]), "it has outputs of ADD that are no tensors"),
        (change(x__shape=[1 << 20, 1 << 20]), "tensor `x` has the shape"),
        (change(x__shape=[-3, 4]), "tensor `x` has the shape"),
        (change(x__shape=[1] * 9), "tensor `x` has the shape"),
        (change(x__external_buffer=4), "tensor `x` lies in another file"),
        (change(c__buffer=5), "the buffer of tensor `c` is not there"),
        (change(c__shape=[5]), "tensor `c` has 16 bytes, its shape needs 20"),
        (change(c__type=5), "tensor `c` has element type 5, which no network computes with"),
        (change(c__type=17), "tensor `c` has 16 bytes, its shape needs 2"),
        (change(c__sparsity={}), "tensor `c` is sparse"),
        (change(c__type=2, c__quantization={"scale": [1.0, 2.0], "zero_point": [0, 0]}), "tensor `c` has 2 scales and 2 zero points"),
        (change(c__type=2, c__quantization={"scale": [0.0], "zero_point": [0]}), "tensor `c` has a scale that is none"),
        (change(c__type=2, c__quantization={"scale": [float("inf")], "zero_point": [0]}), "tensor `c` has a scale that is none"),
    ],
)
def test_what_leads_nowhere_is_refused_in_one_sentence(tmp_path, changed, problem):
    model = small()
    changed(model)
    with pytest.raises(StretchError, match=problem) as caught:
        open_tflite(save(tmp_path / "m.tflite", model))
    assert "\n" not in caught.value.message
    assert "m.tflite is no TFLite file that can be read" in caught.value.message


def test_many_tensors_of_one_buffer_do_not_grow(tmp_path):
    model = small()
    model["buffers"][1] = {"data": np.zeros(1 << 20, np.uint8)}
    more = {"name": "c", "shape": [1 << 20], "type": KINDS["int8"], "buffer": 1, "quantization": {"scale": [1.0], "zero_point": [0]}}
    model["subgraphs"][0]["tensors"][1] = more
    model["subgraphs"][0]["tensors"] += [more] * 600
    with pytest.raises(StretchError, match=r"it has 2\.5 GB of stored numbers"):
        open_tflite(save(tmp_path / "m.tflite", model))


@given(st.data())
def test_file_with_changed_bytes_is_read_or_refused_and_nothing_else(tmp_path_factory, data):
    content = bytearray(ANY_TFLITE.encode(small()))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.tflite"
    path.write_bytes(content)
    try:
        network = open_tflite(path)
    except StretchError as error:
        message = error.message
        assert "\n" not in message
    else:
        assert all(0 <= i < len(network.tensors) for operator in network.operators for i in operator.outputs)


@pytest.fixture
def schema():
    return pytest.importorskip("ai_edge_litert.schema_py_generated")


def test_operators_and_tables_of_settings_have_the_numbers_of_the_schema(schema):
    assert {name: getattr(schema.BuiltinOperator, name) for name in NAMES.values()} == {name: number for number, name in NAMES.items()}
    assert {table: getattr(schema.BuiltinOptions, table) for table in ANY_OPTIONS.values()} == {table: n for n, table in ANY_OPTIONS.items()}


def test_fields_lie_where_the_schema_has_them(schema):
    names = {"b": "Int8", "B": "Uint8", "i": "Int32", "I": "Uint32", "q": "Int64", "Q": "Uint64", "f": "Float32", "?": "Bool"}
    known = [(getattr(schema, table), fields) for table, fields in ANY_TFLITE.tables.items() if hasattr(schema, table)]
    assert len(known) > 20
    for reader, fields in known:
        for field, (slot, kind) in fields.items():
            source = inspect.getsource(getattr(reader, "".join(part.title() for part in field.split("_"))))
            assert f"self._tab.Offset({4 + 2 * slot})" in source, field
            assert kind not in SCALARS or f"{names[SCALARS[kind]]}Flags" in source, field
