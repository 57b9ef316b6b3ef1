"""OpenVINO asked about foreign files; whether it compiles them, and what it says, is the witness."""

import pytest

from predictors.errors import UnknownNameError
from scheduler.explain.foreign import explain_file
from tests.scheduler.explain.files import CHAINS, FOREIGN

openvino = pytest.importorskip("openvino")

STOPPED = {"own_domain": ("swirl", "Swirl"), "own": ("Swirl_1", "Swirl")}


def witness(path):
    """Its own words on a file that it does not compile."""
    try:
        core = openvino.Core()
        core.compile_model(core.read_model(str(path)), "CPU")
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.representatives(3)
@pytest.mark.parametrize("name", [*FOREIGN, *CHAINS])
def test_first_unsupported_operator_is_the_one_of_its_own_message(foreign, name):
    found = explain_file(foreign[name], "openvino", "cpu")
    said = witness(foreign[name])
    assert (said is None) == (not found.obstacles)
    if said is None:
        assert {op.target for op in found.operators if op.taken} == {"CPU"}
        return
    first = found.obstacles[0]
    assert first.op in said
    if name in STOPPED:
        assert (first.operator, first.op) == STOPPED[name]


def test_plug_in_without_a_processor_here_is_refused(foreign):
    with pytest.raises(UnknownNameError, match="device of openvino `npux`"):
        explain_file(foreign["plain"], "openvino", "npux")
