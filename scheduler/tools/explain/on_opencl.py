"""Operator support of the `opencl` delegate, by its own checks."""

from predictors.errors import StretchError, UnknownNameError
from scheduler.delegates.opencl.delegate import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.graph import MIN_OPSET
from scheduler.tools.explain.answer import Verdict
from scheduler.tools.explain.model import ForeignModel

TARGET = "opencl"


def ask(model: ForeignModel, device: str | None) -> Verdict:
    """What kernels of the delegate compute of a file (`device`: part of the device's name, or None for the delegate's choice)."""
    from importlib.metadata import version

    opened_device = open_device(())
    if device is not None and device.lower() not in opened_device.name.lower():
        raise UnknownNameError(f"unknown device of opencl `{device}`", f"the delegate drives `{opened_device.name}` here")
    verdict = Verdict(runtime=f"opencl delegate, nn-stretch {version('nn-stretch')}", device=opened_device.name, target=TARGET)
    unread = _unread(model)
    if unread is not None:
        verdict.at, verdict.refused = unread
        return verdict
    delegate = OpenCLDelegate()
    place = {op.name: i for i, op in enumerate(model.ops)}
    try:
        graph = delegate.prepared(model.path)
        said = delegate.refusals(graph)
    except StretchError as error:
        verdict.refused = error.message
        verdict.at = next((i for name, i in place.items() if f"`{name}`" in error.message), None)
        return verdict
    kept = {name: node.name for node in graph.nodes for name in (node.name, *node.merged)}
    for name, i in place.items():
        if name not in kept:
            verdict.gone[i] = graph.gone.get(name, "a constant, or its elements lie where they are read")
        elif kept[name] in said:
            verdict.said[i] = said[kept[name]]
        else:
            verdict.taken[i] = TARGET
    return verdict


def _unread(model: ForeignModel) -> tuple[int, str] | None:
    """The first operator of a file that the delegate does not read as a graph, and why."""
    if model.opset < MIN_OPSET:
        return 0, f"the file uses opset {model.opset}, the opencl delegate reads {MIN_OPSET} and later"
    for i, op in enumerate(model.ops):
        if op.domain:
            return i, f"node `{op.name}` is of the domain `{op.domain}`, the opencl delegate computes ONNX's own operators"
        if len(op.outputs) != 1:
            return i, f"node `{op.name}` writes {len(op.outputs)} tensors, the opencl delegate's kernels write one"
    opened = next((i for i, op in enumerate(model.ops) if op.dynamic), None)
    return None if opened is None else (opened, f"node `{model.ops[opened].name}` has tensors of no fixed shape")
