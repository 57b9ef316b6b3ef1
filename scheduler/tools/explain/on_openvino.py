"""Operator support of OpenVINO: what its frontend converts, and what `query_model` of a plug-in lists."""

import re
from typing import Any

from predictors.errors import UnknownNameError
from scheduler.tools.explain.answer import Verdict
from scheduler.tools.explain.model import ForeignModel

#: Names of its frontends by the kind of file.
FRONTENDS = {"ONNX": "onnx", "TFLite": "tflite"}

_TYPE = re.compile(r"[\w.]+")


def ask(model: ForeignModel, device: str | None) -> Verdict:
    """What a plug-in takes of a file (`device`: a plug-in in small letters, such as ``gpu``; the best one here if None)."""
    import openvino

    core = openvino.Core()
    there = {name.lower(): name for name in core.available_devices}
    device = (device or next((name for name in ("npu", "gpu") if name in there), "cpu")).lower()
    if device not in there:
        raise UnknownNameError.among("device of openvino", device, there)
    verdict = Verdict(runtime=f"openvino {openvino.__version__.partition('-')[0]}", device=device, target=there[device])
    if set(there) == {"cpu"}:
        verdict.warnings.append("OpenVINO finds no accelerator on this machine: its CPU plug-in is used")
    try:
        network = core.read_model(str(model.path))
    except RuntimeError as error:
        verdict.refused = _readable(str(error))
        verdict.at = _first_of_type(model, verdict.refused)
        return verdict
    answer = dict(core.query_model(network, there[device]))
    nodes_of = _by_operator(model, network)
    for i in range(len(model.ops)):
        nodes = nodes_of.get(i, [])
        if not nodes:
            verdict.gone[i] = "folded or merged by OpenVINO while it reads the file"
        elif all(node in answer for node in nodes):
            verdict.taken[i] = answer[nodes[0]]
        else:
            lacking = [node for node in nodes if node not in answer]
            verdict.said[i] = f"query_model does not list `{lacking[0]}` for {there[device]}"
    return verdict


def _by_operator(model: ForeignModel, network: Any) -> dict[int, list[str]]:
    """Friendly names of the nodes that each operator of the file became: they are called like it or like what it writes."""
    place: dict[str, int] = {}
    for i, op in enumerate(model.ops):
        network_file = model.network
        written = op.outputs if network_file is None else [network_file.tensors[t].name for t in network_file.operators[i].outputs]
        place.update(dict.fromkeys((op.name, *written), i))
    names: dict[int, list[str]] = {}
    for node in network.get_ordered_ops():
        if node.get_type_name() in ("Parameter", "Result", "Constant"):
            continue
        for name in (node.get_friendly_name(), *(name for output in node.outputs() for name in output.get_names())):
            if name in place:
                names.setdefault(place[name], []).append(node.get_friendly_name())
                break
    return names


def _readable(words: str) -> str:
    """Its message without where in its source it was raised."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    kept = [line for line in lines if not re.match(r"(Exception from|Check .* failed at|\S+\.(cpp|hpp):\d+)", line)]
    return " ".join(kept or lines)[:600]


def _first_of_type(model: ForeignModel, words: str) -> int | None:
    """Place of the first operator whose name or type the message has."""
    said = set(_TYPE.findall(words)) | {word.rpartition(".")[2] for word in _TYPE.findall(words)}
    return next((i for i, op in enumerate(model.ops) if op.name in said or (op.op in said and len(op.op) > 2)), None)
