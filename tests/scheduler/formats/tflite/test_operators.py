"""The tables against LiteRT's own, which its schema was compiled to."""

import inspect

import pytest

from scheduler.formats.flatbuffer import SCALARS
from scheduler.formats.tflite.file import NAMES, OPTIONS, TABLES

schema = pytest.importorskip("ai_edge_litert.schema_py_generated")


def test_operators_have_the_numbers_of_the_schema():
    assert {name: getattr(schema.BuiltinOperator, name) for name in NAMES.values()} == {name: number for number, name in NAMES.items()}


def test_tables_of_settings_have_the_numbers_of_the_schema():
    assert {table: getattr(schema.BuiltinOptions, table) for table in OPTIONS.values()} == {table: n for n, table in OPTIONS.items()}


@pytest.mark.parametrize(("table", "field"), [(table, field) for table, fields in TABLES.items() for field in fields])
def test_fields_lie_where_the_schema_has_them(table, field):
    slot, kind = TABLES[table][field]
    own = getattr(schema, table, None)
    if own is None:
        pytest.skip("the runtime's schema has no such table")
    read = inspect.getsource(getattr(own, "".join(part.title() for part in field.split("_"))))
    assert f"self._tab.Offset({4 + 2 * slot})" in read
    if kind in SCALARS:
        names = {"b": "Int8", "B": "Uint8", "i": "Int32", "I": "Uint32", "q": "Int64", "Q": "Uint64", "f": "Float32", "?": "Bool"}
        assert f"{names[SCALARS[kind]]}Flags" in read
