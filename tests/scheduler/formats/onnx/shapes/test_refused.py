import onnx.defs
import pytest

from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.refused import REASONS, reason


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("NonZero", "depends on what the network computes"),
        ("NonMaxSuppression", "depends on what the network computes"),
        ("Loop", "holds a graph"),
        ("RandomNormal", "random"),
        ("Attention", "does not know what it makes"),
    ],
)
def test_reason_names_the_operator_says_why_and_how_to_mend(op, why):
    said = reason(op)
    assert said.startswith(f"no bundle holds `{op}`: ")
    assert why in said
    assert said.endswith("write it with other operators")


def test_no_operator_is_both_known_and_refused():
    assert not REASONS.keys() & RULES.keys()


def test_operators_are_those_of_onnx():
    there = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert REASONS.keys() | RULES.keys() <= there
