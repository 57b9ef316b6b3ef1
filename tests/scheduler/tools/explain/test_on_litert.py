"""LiteRT asked about foreign files; whether its delegate replaces an operator that is alone in a file is the witness."""

from itertools import pairwise

import pytest

from predictors.errors import UnknownNameError
from scheduler.tools.explain.foreign import explain_file
from tests.scheduler.tools.explain.files import CHAINS, write_chain

pytest.importorskip("ai_edge_litert")

#: First operator that XNNPACK leaves, and what stops it; None where it takes all.
FIRST = {
    "add": None,
    "add_mul": None,
    "whole_numbers": ("ADD_0", "type int64"),
    "divided": ("FLOOR_DIV_1", "operator FLOOR_DIV"),
    "power": ("POW_0", "operator POW"),
    "own": ("Swirl_1", "operator Swirl"),
    "reversed": ("SIGN_2", "operator SIGN"),
    "rounded": None,
    "two_parts": ("SIGN_2", "operator SIGN"),
    "floors": ("FLOOR_DIV_0", "operator FLOOR_DIV"),
}


def alone(code, folder):
    """Whether XNNPACK replaces an operator that is a file by itself, in the interpreter's own list."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(write_chain(folder, code, [code])))
    interpreter.allocate_tensors()
    return any(step["op_name"] == "DELEGATE" for step in interpreter._get_ops_details())


@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", CHAINS)
def test_first_unsupported_operator_and_partitions_are_those_of_operators_alone(foreign, tmp_path, name):
    result = explain_file(foreign[name], "litert")
    with pytest.raises(UnknownNameError, match="`gpu`"):
        explain_file(foreign[name], "litert", "gpu")
    first = (result.obstacles[0].operator, result.obstacles[0].cause) if result.obstacles else None
    assert first == FIRST[name]
    if name == "own":
        assert "Swirl" in result.obstacles[0].words
        return
    taken = [alone(code, tmp_path) for code in CHAINS[name]["codes"]] if "kind" not in CHAINS[name] else [False]
    assert [op.taken for op in result.operators] == taken
    assert result.partitions == sum(a and not b for a, b in pairwise([*taken, False]))
