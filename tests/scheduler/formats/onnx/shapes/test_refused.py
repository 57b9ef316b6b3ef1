import onnx.defs

from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.refused import REASONS


def test_no_operator_is_both_known_and_refused():
    assert not REASONS.keys() & RULES.keys()


def test_operators_are_those_of_onnx():
    there = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert REASONS.keys() | RULES.keys() <= there
