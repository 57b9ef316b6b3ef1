"""The schema's classes that come with LiteRT are the oracle."""

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
