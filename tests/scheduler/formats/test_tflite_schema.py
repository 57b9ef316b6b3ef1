"""The schema's classes that come with LiteRT are the oracle."""

import numpy as np
import pytest

from scheduler.formats.tflite_schema import OPERATORS, OPTIONS, TABLES, TFLITE, TYPES, VERSION

schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

SCALARS = {"bool": True, "i8": 3, "u8": 5, "i32": -7, "u32": 11, "f32": 0.5}


def camel(name):
    return "".join(part.capitalize() for part in name.split("_"))


def test_numbers_of_operators_options_and_types_are_the_schemas():
    assert {name: kind.number for name, kind in OPERATORS.items()} == {name: getattr(schema.BuiltinOperator, name) for name in OPERATORS}
    assert {name: getattr(schema.BuiltinOptions, name) for name in OPTIONS} == OPTIONS
    assert {name: getattr(schema.TensorType, name.upper()) for name in TYPES} == TYPES
    assert {kind.options for kind in OPERATORS.values()} - {None} == OPTIONS.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_settings_are_read_by_the_schemas_own_classes(name):
    settings = {field: SCALARS[kind] for field, (_, kind) in TABLES[name].items() if kind in SCALARS}
    operator = {"opcode_index": 0, "builtin_options_type": OPTIONS[name], "builtin_options": settings}
    content = TFLITE.encode({"version": VERSION, "subgraphs": [{"operators": [operator]}]})
    read = schema.Model.GetRootAs(content, 0).Subgraphs(0).Operators(0)
    assert read.BuiltinOptionsType() == OPTIONS[name]
    options = getattr(schema, name)()
    options.Init(read.BuiltinOptions().Bytes, read.BuiltinOptions().Pos)
    for field, value in settings.items():
        assert getattr(options, camel(field))() == value, field


def test_every_other_table_is_read_by_the_schemas_own_classes():
    quant = {"scale": [0.5, 0.25], "zero_point": [-3, 4], "quantized_dimension": 1}
    tensor = {"shape": [1, 2], "type": 9, "buffer": 1, "name": "t", "quantization": quant}
    graph = {
        "tensors": [tensor],
        "inputs": [0],
        "outputs": [0],
        "operators": [{"opcode_index": 2, "inputs": [0], "outputs": [0]}],
        "name": "g",
    }
    signature = {"inputs": [{"name": "i", "tensor_index": 3}], "outputs": [], "signature_key": "s", "subgraph_index": 4}
    model = {
        "version": VERSION,
        "operator_codes": [{"deprecated_builtin_code": 127, "version": 2, "builtin_code": 150}],
        "subgraphs": [graph],
        "description": "d",
        "buffers": [{}, {"data": np.arange(5, dtype=np.uint8)}],
        "metadata": [{"name": "m", "buffer": 1}],
        "signature_defs": [signature],
    }
    content = TFLITE.encode(model)
    assert schema.Model.ModelBufferHasIdentifier(content, 0)
    read = schema.ModelT.InitFromPackedBuf(content, 0)
    assert (read.version, read.description) == (VERSION, b"d")
    code = read.operatorCodes[0]
    assert (code.deprecatedBuiltinCode, code.version, code.builtinCode) == (127, 2, 150)
    (got,) = read.subgraphs[0].tensors
    assert (got.shape.tolist(), got.type, got.buffer, got.name) == ([1, 2], 9, 1, b"t")
    scales = got.quantization
    assert (scales.scale.tolist(), scales.zeroPoint.tolist(), scales.quantizedDimension) == ([0.5, 0.25], [-3, 4], 1)
    assert read.subgraphs[0].operators[0].opcodeIndex == 2
    assert read.buffers[0].data is None
    assert read.buffers[1].data.tolist() == [0, 1, 2, 3, 4]
    assert (read.metadata[0].name, read.metadata[0].buffer) == (b"m", 1)
    assert (read.signatureDefs[0].signatureKey, read.signatureDefs[0].subgraphIndex) == (b"s", 4)
    assert (read.signatureDefs[0].inputs[0].name, read.signatureDefs[0].inputs[0].tensorIndex) == (b"i", 3)
