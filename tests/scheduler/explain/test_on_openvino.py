"""OpenVINO asked about foreign files; whether it compiles them, and what it says, is the witness."""

import pytest

from predictors.errors import UnknownNameError
from scheduler.explain.foreign import explain_file

openvino = pytest.importorskip("openvino")


def witness(path):
    """Its own words on a file that it does not compile."""
    try:
        core = openvino.Core()
        core.compile_model(core.read_model(str(path)), "CPU")
    except RuntimeError as error:
        return str(error)
    return None


def test_plug_in_without_a_processor_here_is_refused(foreign):
    with pytest.raises(UnknownNameError, match="device of openvino `npux`"):
        explain_file(foreign["plain"], "openvino", "npux")
