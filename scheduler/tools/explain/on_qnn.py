"""Operator support of ONNX Runtime's QNN provider for Hexagon processors, with the reasons in its log.

On x86-64 the compiler of the simulator is used, which also compiles for devices.
"""

import re

from predictors.errors import UnknownNameError
from scheduler.delegates.dsp import PROVIDER, load_library, session_options
from scheduler.tools.explain.answer import Verdict
from scheduler.tools.explain.model import ForeignModel
from scheduler.tools.explain.on_onnxruntime import read_session

#: How its log tells of operators that failed: a head, then their types and names, then the reason.
_FAILED = re.compile(r"Validation FAILED for (?P<nodes>.*?)REASON ?: ?(?P<reason>[^\n]+)", re.DOTALL)
_NAME = re.compile(r"Node name: (\S+)")


def ask(model: ForeignModel, device: str | None) -> Verdict:
    """What QNN's provider takes of a file, the rest being the CPU's (`device`: ``htp`` or None)."""
    import onnxruntime

    if device not in (None, "htp"):
        raise UnknownNameError.among("device of qnn", device or "", ["htp"])
    library = load_library()
    verdict = Verdict(runtime=", ".join(reversed(library.versions.split(", ")[:2])), device="htp", target=PROVIDER)
    return read_session(onnxruntime, model, session_options(library, {}), verdict)


def read_log(model: ForeignModel, log: str, verdict: Verdict) -> None:
    """Add the provider's reasons, which its log alone has, to the operators that it left."""
    place = {op.name: i for i, op in enumerate(model.ops)}
    for match in _FAILED.finditer(log):
        for name in _NAME.findall(match["nodes"]):
            i = place.get(name)
            if i is not None and verdict.taken.get(i) != verdict.target:
                verdict.said.setdefault(i, match["reason"].strip()[:600])
