"""Reading TFLite files, and checks that files of nn-stretch contain no number that could crash a runtime."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from scheduler.bundle.tflite_file import parse_tflite
from scheduler.formats.flatbuffer import SCALARS, Flatbuffer
from scheduler.formats.tflite import ANY_TFLITE, ANY_TYPES, NAMES, OPERATORS, OPTIONS, TYPES, open_tflite
from tests.damage import damaged, one_sentence
from tests.scheduler.delegates import graphs
from tests.scheduler.tflite_files import changed, small_source
from tests.stretch.export.tflite.rounded import rounded_source

KINDS = {kind: number for number, kind in ANY_TYPES.items()}


def small():
    """Tables of a file that adds a constant to `x`."""
    tensors = [{"name": name, "shape": [1, 4], "type": 0} for name in "xcy"]
    tensors[1] |= {"shape": [4], "buffer": 1}
    graph = {"tensors": tensors, "inputs": [0], "outputs": [2], "operators": [{"inputs": [0, 1], "outputs": [2]}]}
    buffers = [{}, {"data": np.arange(4, dtype=np.float32).view(np.uint8)}]
    return {"version": 3, "operator_codes": [{"deprecated_builtin_code": 0}], "subgraphs": [graph], "buffers": buffers}


def save(path, model):
    path.write_bytes(bytes(ANY_TFLITE.encode(model)))
    return path


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
def test_stored_numbers_are_dequantised(tmp_path, kind, stored, scales, axis, reals):
    model = small()
    tensor = {"name": "c", "shape": [2, 2], "type": KINDS[kind], "buffer": 1}
    if scales is not None:
        tensor["quantization"] = {"scale": scales[0], "zero_point": scales[1], "quantized_dimension": axis}
    model["subgraphs"][0]["tensors"][1] = tensor
    model["buffers"][1] = {"data": stored.reshape(-1).view(np.uint8)}
    result = open_tflite(save(tmp_path / "m.tflite", model)).tensors[1].reals
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, np.array(reals, np.float32))


def many_tensors_of_one_buffer(model):
    model["buffers"][1] = {"data": np.zeros(1 << 20, np.uint8)}
    more = {"name": "c", "shape": [1 << 20], "type": KINDS["int8"], "buffer": 1, "quantization": {"scale": [1.0], "zero_point": [0]}}
    model["subgraphs"][0]["tensors"][1:2] = [more] * 601


def change(**places):
    """Function that changes keys of the tables: `place__key=value`."""

    def changed(model):
        graph = model["subgraphs"][0]
        tables = {
            "model": model,
            "graph": graph,
            "op": graph["operators"][0],
            "second": graph["operators"][-1 if len(graph["operators"]) < 2 else 1],
            "window": next((o for o in graph["operators"] if "stride_w" in o.get("builtin_options", {})), {}),
            "x": graph["tensors"][0],
            "c": graph["tensors"][1],
            "third": graph["tensors"][2],
            "stored": next(t for t in graph["tensors"] if t.get("buffer")),
            "none": model["buffers"][0],
            "buffer": model["buffers"][1],
            "code": model["operator_codes"][0],
            "signature": model.get("signature_defs", [{}])[0],
        }
        tables["settings"] = tables["window"].get("builtin_options")
        for place, value in places.items():
            table_name, _, key = place.partition("__")
            tables[table_name][key] = value

    return changed


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (many_tensors_of_one_buffer, r"2\.5 GB of stored numbers"),
        *((change(model__version=2), "its version is 2, not 3"), (change(model__subgraphs=[]), "it has 0 subgraphs, one is taken")),
        *((change(graph__operators=[]), "it has no operators"), (change(graph__inputs=[7]), "it has inputs that are no tensors")),
        *((change(graph__inputs=[1]), "its inputs are stored"), (change(graph__outputs=[-1]), "it has outputs that are no tensors")),
        (change(op__opcode_index=3), "it has an operator without a code"),
        (change(op__inputs=[0, 9]), "it has inputs of ADD that are no tensors"),
        *((change(op__inputs=[2, 1]), "ADD reads `y`, which nothing writes before it"), (change(op__outputs=[0]), "`x` is written twice")),
        (change(op__outputs=[-1]), "it has outputs of ADD that are no tensors"),
        *((change(x__shape=[1 << 20, 1 << 20]), "tensor `x` has the shape"), (change(x__shape=[-3, 4]), "tensor `x` has the shape")),
        *((change(x__shape=[1] * 9), "tensor `x` has the shape"), (change(x__external_buffer=4), "tensor `x` is in another file")),
        (change(c__buffer=5), "the buffer of tensor `c` is not there"),
        (change(c__shape=[5]), "tensor `c` has 16 bytes, its shape needs 20"),
        (change(c__type=5), "tensor `c` has element type 5, which no network computes with"),
        *((change(c__type=17), "tensor `c` has 16 bytes, its shape needs 2"), (change(c__sparsity={}), "tensor `c` is sparse")),
        (change(c__type=2, c__quantization={"scale": [1.0, 2.0], "zero_point": [0, 0]}), "tensor `c` has 2 scales and 2 zero points"),
        (change(c__type=2, c__quantization={"scale": [0.0], "zero_point": [0]}), "tensor `c` has a scale that is none"),
        (change(c__type=2, c__quantization={"scale": [float("inf")], "zero_point": [0]}), "tensor `c` has a scale that is none"),
    ],
)
def test_invalid_reference_and_impossible_number_are_refused_in_one_sentence(tmp_path, changed, problem):
    model = small()
    changed(model)
    with pytest.raises(StretchError, match=problem) as caught:
        open_tflite(save(tmp_path / "m.tflite", model))
    assert "\n" not in caught.value.message
    assert "m.tflite" in caught.value.message


def test_operators_options_and_fields_agree_with_the_schema():
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    for table, known in (("BuiltinOperator", NAMES), ("BuiltinOptions", ANY_TFLITE.unions["BuiltinOptions"])):
        assert {number: getattr(getattr(schema, table), name) for number, name in known.items()} == {number: number for number in known}
    assert {name: getattr(schema.TensorType, name.upper()) for name in TYPES} == TYPES
    assert {kind.options for kind in OPERATORS.values()} - {None} == OPTIONS.keys()
    names = {"b": "Int8", "B": "Uint8", "i": "Int32", "I": "Uint32", "q": "Int64", "Q": "Uint64", "f": "Float32", "?": "Bool"}
    known = [(getattr(schema, table), fields) for table, fields in ANY_TFLITE.tables.items() if hasattr(schema, table)]
    assert len(known) > 20
    for reader, fields in known:
        for field, (slot, kind) in fields.items():
            source = inspect.getsource(getattr(reader, "".join(part.title() for part in field.split("_"))))
            assert f"self._tab.Offset({4 + 2 * slot})" in source, field
            assert kind not in SCALARS or f"{names[SCALARS[kind]]}Flags" in source, field


# Files from untrusted sources.


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    source = small_source(tmp_path_factory.mktemp("source"))
    return graphs.tflite_bytes(source.graph, source)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory):
    """An int8 file with a depthwise convolution, a gate, a pool, a concatenation and a linear layer."""
    folder = tmp_path_factory.mktemp("rounded")
    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    ops = [
        Op("x", "input", attrs={"shape": (1, 4, 8, 8)}),
        Op("c", "conv", ("x",), window | {"groups": 4, "out_channels": 4, "bias": True}),
        Op("s", "silu", ("c",)),
        Op("m", "max_pool", ("c",), window | {"stride": (1, 1), "ceil_mode": False}),
        Op("k", "concat", ("s", "m")),
        Op("u", "upsample", ("k",), {"scale": (2, 2)}),
        Op("f", "flatten", ("u",)),
        Op("y", "linear", ("f",), {"out_features": 3, "bias": True}),
    ]
    graph = OpGraph.build("rounded", ops, "y")
    random = np.random.default_rng(0)
    source, _ = rounded_source(graph, graphs.weights_of(graph, random), random.normal(size=(1, 4, 8, 8)).astype(np.float32), folder)
    return graphs.tflite_bytes(graph, source)


def pad_by_a_thousand(model):
    widths = next(t for t in model["subgraphs"][0]["tensors"] if t["name"].endswith(".widths"))
    model["buffers"][widths["buffer"]] = {"data": np.array([0, 0, 1000, 0, 0, 0, 0, 0], np.int32).view(np.uint8)}


DAMAGE = {
    "its version is 9": change(model__version=9),
    "has inputs of CONV_2D that are no tensors": change(second__inputs=[999, 1, 2]),
    "`x` is written twice": change(second__outputs=[0]),
    "has an operator without a code": change(op__opcode_index=77),
    "operator number 32": change(code__builtin_code=32),  # a custom one
    "has stride_w 0": change(settings__stride_w=0),
    "has padding 7": change(settings__padding=7),
    "has no stride": change(window__builtin_options={}),
    "settings of another operator": change(op__builtin_options_type=36),
    "has a type that nn-stretch does not write": change(x__type=5),
    "has the shape": change(x__shape=[1, -4]),
    "its shape needs": change(stored__shape=[1, 1]),
    "PAD of subgraph `case` gives": pad_by_a_thousand,
    "is not there": change(third__buffer=4000),
    "has a scale that is none": change(c__quantization={"scale": [float("nan")], "zero_point": [0]}),
    "its first buffer is not empty": change(none__data=np.zeros(4, np.uint8)),
    "are not one for each subgraph": change(signature__subgraph_index=3),
    "does not name the inputs": change(signature__inputs=[]),
    "has no subgraphs": change(model__subgraphs=[]),
}


def tensor(model, name):
    return next(item for item in model["subgraphs"][0]["tensors"] if item["name"] == name)


def scale_of(name, channel, value):
    """Function that changes the scale of one channel of a tensor."""

    def change(model):
        quantization = tensor(model, name)["quantization"]
        scales = quantization["scale"].copy()
        scales[channel] = value
        tensor(model, name)["quantization"] = {**quantization, "scale": scales}

    return change


def marked_as_float(name):
    """Function that marks an int8 tensor as float."""

    def change(model):
        item = tensor(model, name)
        item["type"] = 0
        del item["quantization"]

    return change


#: Changes after which LiteRT aborts the process.
FATAL = {
    "LOGISTIC of subgraph `case` reads int8 as `c` and gives float32": marked_as_float("s.sigmoid"),
    "DEPTHWISE_CONV_2D of subgraph `case` makes its integers": scale_of("c.weight", 2, 1e3),
    "has the scale": scale_of("c", 0, 1e-30),
    "is float32 and has a scale": lambda model: tensor(model, "s.sigmoid").update(type=0),
    "QUANTIZE of subgraph `case` gives float32": marked_as_float("m.rescaled"),
}


@pytest.mark.parametrize("problem", [*FATAL, *DAMAGE])
def test_file_that_could_crash_a_runtime_is_refused(content, rounded, tmp_path, problem):
    file = changed(rounded, FATAL[problem]) if problem in FATAL else changed(content, DAMAGE[problem])
    with pytest.raises(StretchError, match="is no TFLite file that nn-stretch wrote") as error:
        parse_tflite(file, tmp_path / "m.tflite")
    assert problem in error.value.message
    assert "\n" not in error.value.message


ROOT = {"name": (0, "string"), "count": (2, "i32"), "rows": (3, "[Row]"), "data": (4, "[u8]"), "kind": (5, "u8"), "more": (6, "kind?More")}
ROW = {"flag": (0, "bool"), "wide": (1, "[i64]"), "ratio": (2, "f32")}
SCHEMA = {"Root": ROOT, "Row": ROW, "Left": {"x": (0, "i8")}, "Right": {"row": (0, "Row")}}
FORMAT = Flatbuffer(SCHEMA, {"More": {1: "Left", 2: "Right"}}, "Root", b"TEST")

wide = st.lists(st.integers(-(2**63), 2**63 - 1))
rows = st.fixed_dictionaries({}, optional={"flag": st.booleans(), "wide": wide, "ratio": st.floats(width=32, allow_nan=False)})
unions = st.fixed_dictionaries({"kind": st.just(1), "more": st.fixed_dictionaries({"x": st.integers(-128, 127)})})
unions |= st.just({}) | st.fixed_dictionaries({"kind": st.just(2), "more": st.fixed_dictionaries({"row": rows})})
fields = {"name": st.text(), "count": st.integers(-(2**31), 2**31 - 1), "rows": st.lists(rows, max_size=5), "data": st.binary()}
roots = st.builds(lambda fields, union: fields | union, st.fixed_dictionaries({}, optional=fields), unions)


def plain(value):
    """The value with arrays as lists or bytes, for comparison."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return bytes(value) if value.dtype == np.uint8 else value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


def encoded(value):
    return FORMAT.encode(value | ({"data": np.frombuffer(value["data"], np.uint8)} if "data" in value else {}))


@given(roots)
def test_encoded_value_is_decoded_again(value):
    assert plain(FORMAT.decode(encoded(value))) == value


@given(roots, st.data())
def test_damaged_file_is_read_or_refused_with_one_sentence(value, data):
    content = damaged(data.draw, encoded(value))
    with one_sentence():
        FORMAT.decode(content[: data.draw(st.integers(0, len(content)))])


def test_list_longer_than_the_file_is_refused():
    content = encoded({"data": b"abcdefgh"})
    offset = content.find(b"abcdefgh") - 4
    content[offset : offset + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(StretchError, match="leads out of it"):
        FORMAT.decode(content)
