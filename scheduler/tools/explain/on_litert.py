"""Operator support of LiteRT's XNNPACK delegate."""

import importlib
import re
from typing import Any

from predictors.errors import MissingBackendError, UnknownNameError
from scheduler.delegates.litert import INSTALL, LiteRtDelegate
from scheduler.tools.explain.answer import Verdict
from scheduler.tools.explain.model import ForeignModel

_NUMBER = re.compile(r"Node number (\d+)")


def ask(model: ForeignModel, device: str | None) -> Verdict:
    """What XNNPACK takes of a file, the rest being kernels of LiteRT (`device`: ``cpu`` or None)."""
    if device not in (None, "cpu"):
        raise UnknownNameError.among("device of litert", device or "", ["cpu"])
    version = LiteRtDelegate.version()
    verdict = Verdict(runtime=version.replace("_", "-"), device="cpu", target="XNNPACK")
    try:
        make = importlib.import_module(f"{version.split()[0]}.interpreter").Interpreter
    except ImportError as error:
        raise MissingBackendError(f"the installed {version} cannot be loaded: {error}", INSTALL) from error
    try:
        interpreter = make(model_path=str(model.path), num_threads=1)
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        verdict.refused = " ".join(str(error).split())[:600]
        match = _NUMBER.search(verdict.refused)
        named = next((i for i, op in enumerate(model.ops) if op.op in verdict.refused), None)
        verdict.at = int(match[1]) if match and int(match[1]) < len(model.ops) else named
        return verdict
    _read(interpreter, len(model.ops), verdict)
    return verdict


def _read(interpreter: Any, operators: int, verdict: Verdict) -> None:
    """Fill in who has which operator: a delegate's partition stands behind the operators, and its borders tell what is in it."""
    steps = interpreter._get_ops_details()
    operator_steps = [step for step in steps if step["op_name"] != "DELEGATE"][:operators]
    producers = {int(out): i for i, step in enumerate(operator_steps) for out in step["outputs"]}
    for i in range(operators):
        verdict.taken[i] = "LiteRT"
    parts = [step for step in steps if step["op_name"] == "DELEGATE"]
    for number, step in enumerate(parts):
        border, left = {int(t) for t in step["inputs"]}, [int(t) for t in step["outputs"]]
        while left:
            tensor = left.pop()
            maker = producers.get(tensor)
            if tensor in border or maker is None or maker in verdict.parts:
                continue
            verdict.taken[maker], verdict.parts[maker] = verdict.target, number
            left += [int(t) for t in operator_steps[maker]["inputs"]]
