"""Support of a model file's operators in each runtime, as reported by the runtime itself."""

import importlib
import re
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, UsageError
from scheduler.delegates import delegates
from scheduler.delegates.cpu import load_runtime
from scheduler.delegates.dsp import PROVIDER, load_library, session_options
from scheduler.delegates.litert import INSTALL, LiteRtDelegate, partitions
from scheduler.delegates.opencl.delegate import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.graph import MIN_OPSET
from scheduler.tools.explain.model import ForeignModel, Verdict

_SUFFIX = "ExecutionProvider"

#: Providers that compute on other machines.
_REMOTE = ("azure",)

#: Maximum size in bytes of a file whose optimised form is searched for added operators.
_LOOKED_AT = 1 << 28

#: Prefixes of operator types that ONNX Runtime adds between providers and precisions.
_ADDED = ("Cast", "Memcpy")

#: Types of operators that are inserted at borders.
_CONVERSIONS = ("Transpose", "Cast")

#: Suffix that providers with channels last append to the names of operators they transpose.
_TURNED = re.compile(r"_token_\d+$")

#: Names and types of operators in ONNX Runtime's messages.
_NAMED = (re.compile(r"node with name '([^']+)'"), re.compile(r"[Nn]ode[ :(]+'?\"?([^\s'\")]+)"))
_TYPED = (
    re.compile(r"([\w.]+:)?(\w+)\(-?\d+\) is not a registered"),
    re.compile(r"No Op registered for (\w+)"),
    re.compile(r"implementation for (\w+)\("),
)


def ask_onnxruntime(model: ForeignModel, device: str | None) -> Verdict:
    """Return the provider of each part, as assigned by a session.

    Args:
        device: A provider in lower case without its suffix, such as ``cuda``; None for the first one other than the CPU's.
    """
    onnxruntime = load_runtime()
    available = {name.removesuffix(_SUFFIX).lower(): name for name in onnxruntime.get_available_providers()}
    available = {name: provider for name, provider in available.items() if name not in _REMOTE}
    device = device or next((name for name in available if name != "cpu"), "cpu")
    if device not in available:
        raise UnknownNameError.among("device of onnxruntime", device, available)
    verdict = Verdict(runtime=f"onnxruntime {onnxruntime.__version__}", device=device, target=available[device])
    if device == "cpu" and len(available) == 1:
        verdict.warnings.append("ONNX Runtime has no provider for an accelerator on this machine: its CPU provider is used")
    options = onnxruntime.SessionOptions()
    providers = [available[device], *([available["cpu"]] if device != "cpu" else [])]
    return read_session(onnxruntime, model, options, verdict, providers=providers)


def read_session(onnxruntime: ModuleType, model: ForeignModel, options: Any, verdict: Verdict, **settings: Any) -> Verdict:
    """Fill in the assignments of a session with these options, or the reason for its refusal, and return the verdict."""
    options.log_severity_level = 0
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(model.path.parent))
    content = model.content
    with tempfile.TemporaryDirectory() as folder:
        optimised = Path(folder) / "optimised.onnx"
        if verdict.target == "CPUExecutionProvider" and len(content) < _LOOKED_AT:
            options.optimized_model_filepath = str(optimised)
        try:
            session = onnxruntime.InferenceSession(content, options, **settings)
        # ONNX Runtime's exceptions have no common base class.
        except Exception as error:
            verdict.refused = " ".join(str(error).split())[:600]
            verdict.at = find_mentioned(model, verdict.refused)
            return verdict
        place = {op.name: i for i, op in enumerate(model.ops)}
        counted = optimised.is_file()
        if counted:
            verdict.added += _count_added(optimised, place)
    for number, part in enumerate(session.get_provider_graph_assignment_info()):
        for node in part.get_nodes():
            i = place.get(node.name, place.get(_TURNED.sub("", node.name)))
            if i is None and not counted and node.op_type in _CONVERSIONS:
                verdict.added += 1
            if i is not None:
                verdict.taken[i] = part.ep_name
                if part.ep_name == verdict.target and verdict.target != "CPUExecutionProvider":
                    verdict.parts[i] = number
    for i in range(len(model.ops)):
        if i not in verdict.taken:
            verdict.removed[i] = "folded or merged by ONNX Runtime before it asks its providers"
    return verdict


def find_mentioned(model: ForeignModel, message: str) -> int | None:
    """Return the index of the first operator that a message names, by its name or else by its type."""
    names = {op.name: i for i, op in reversed(list(enumerate(model.ops)))}
    for pattern in _NAMED:
        for name in pattern.findall(message):
            if name.rstrip(".,:") in names:
                return names[name.rstrip(".,:")]
    types = {op.op: i for i, op in reversed(list(enumerate(model.ops)))}
    for pattern in _TYPED:
        match = pattern.search(message)
        if match and match.groups()[-1] in types:
            return types[match.groups()[-1]]
    return None


def _count_added(optimised: Path, names: Collection[str]) -> int:
    """Return the number of operators that ONNX Runtime added to change precision or memory."""
    import onnx

    nodes = onnx.load(str(optimised), load_external_data=False).graph.node
    return sum(node.name not in names and node.op_type.startswith(_ADDED) for node in nodes)


#: Part of QNN's log on operators that failed: a heading, then their types and names, then the reason.
_FAILED = re.compile(r"Validation FAILED for (?P<nodes>.*?)REASON ?: ?(?P<reason>[^\n]+)", re.DOTALL)
_NODE_NAME = re.compile(r"Node name: (\S+)")


def ask_qnn(model: ForeignModel, device: str | None) -> Verdict:
    """Return the operators that QNN's provider supports; the CPU runs the others (`device`: ``htp`` or None)."""
    import onnxruntime

    if device not in (None, "htp"):
        raise UnknownNameError.among("device of qnn", device or "", ["htp"])
    library = load_library()
    verdict = Verdict(runtime=", ".join(reversed(library.versions.split(", ")[:2])), device="htp", target=PROVIDER)
    return read_session(onnxruntime, model, session_options(library, {}), verdict)


def read_qnn_log(model: ForeignModel, log: str, verdict: Verdict) -> None:
    """Add the provider's reasons, which only its log contains, to the operators that it refused."""
    place = {op.name: i for i, op in enumerate(model.ops)}
    for match in _FAILED.finditer(log):
        for name in _NODE_NAME.findall(match["nodes"]):
            i = place.get(name)
            if i is not None and verdict.taken.get(i) != verdict.target:
                verdict.messages.setdefault(i, match["reason"].strip()[:600])


_WORD = re.compile(r"[\w.]+")


def ask_openvino(model: ForeignModel, device: str | None) -> Verdict:
    """Return the operators that a plug-in supports (`device`: a plug-in in lower case, such as ``gpu``; None for the best one here)."""
    import openvino

    core = openvino.Core()
    devices = {name.lower(): name for name in core.available_devices}
    device = (device or next((name for name in ("npu", "gpu") if name in devices), "cpu")).lower()
    if device not in devices:
        raise UnknownNameError.among("device of openvino", device, devices)
    verdict = Verdict(runtime=f"openvino {openvino.__version__.partition('-')[0]}", device=device, target=devices[device])
    if set(devices) == {"cpu"}:
        verdict.warnings.append("OpenVINO finds no accelerator on this machine: its CPU plug-in is used")
    try:
        network = core.read_model(str(model.path))
    except RuntimeError as error:
        verdict.refused = _readable(str(error))
        verdict.at = _first_of_type(model, verdict.refused)
        return verdict
    answer = dict(core.query_model(network, devices[device]))
    nodes_of = _by_operator(model, network)
    for i in range(len(model.ops)):
        nodes = nodes_of.get(i, [])
        if not nodes:
            verdict.removed[i] = "folded or merged by OpenVINO while it reads the file"
        elif all(node in answer for node in nodes):
            verdict.taken[i] = answer[nodes[0]]
        else:
            lacking = [node for node in nodes if node not in answer]
            verdict.messages[i] = f"query_model does not list `{lacking[0]}` for {devices[device]}"
    return verdict


def _by_operator(model: ForeignModel, network: Any) -> dict[int, list[str]]:
    """Return the friendly names of the nodes made from each operator of the file, matched by its name or by its outputs."""
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


def _readable(message: str) -> str:
    """Return the runtime's message without source locations."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    message_lines = [line for line in lines if not re.match(r"(Exception from|Check .* failed at|\S+\.(cpp|hpp):\d+)", line)]
    return " ".join(message_lines or lines)[:600]


def _first_of_type(model: ForeignModel, message: str) -> int | None:
    """Return the index of the first operator whose name or type is in the message."""
    mentioned_words = set(_WORD.findall(message)) | {word.rpartition(".")[2] for word in _WORD.findall(message)}
    return next((i for i, op in enumerate(model.ops) if op.name in mentioned_words or (op.op in mentioned_words and len(op.op) > 2)), None)


_NUMBER = re.compile(r"Node number (\d+)")


def ask_litert(model: ForeignModel, device: str | None) -> Verdict:
    """Return the operators that XNNPACK supports; LiteRT's kernels run the others (`device`: ``cpu`` or None)."""
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
        refused = next((i for i, op in enumerate(model.ops) if op.op in verdict.refused), None)
        verdict.at = int(match[1]) if match and int(match[1]) < len(model.ops) else refused
        return verdict
    verdict.taken = dict.fromkeys(range(len(model.ops)), "LiteRT")
    for number, part in enumerate(partitions(interpreter._get_ops_details())):
        for i in part:
            verdict.taken[i], verdict.parts[i] = verdict.target, number
    return verdict


def ask_opencl(model: ForeignModel, device: str | None) -> Verdict:
    """Return the operators that the delegate's kernels support (`device`: part of the device's name, or None for the delegate's choice)."""
    from importlib.metadata import version

    opened_device = open_device(())
    if device is not None and device.lower() not in opened_device.name.lower():
        raise UnknownNameError(f"unknown device of opencl `{device}`", f"the delegate drives `{opened_device.name}` here")
    verdict = Verdict(runtime=f"opencl delegate, nn-stretch {version('nn-stretch')}", device=opened_device.name, target="opencl")
    unread = _unreadable(model)
    if unread is not None:
        verdict.at, verdict.refused = unread
        return verdict
    delegate = OpenCLDelegate()
    place = {op.name: i for i, op in enumerate(model.ops)}
    try:
        graph = delegate.prepare(model.path)
        refusals = delegate.refusals(graph)
    except StretchError as error:
        verdict.refused = error.message
        verdict.at = next((i for name, i in place.items() if f"`{name}`" in error.message), None)
        return verdict
    node_of = {name: node.name for node in graph.nodes for name in (node.name, *node.merged)}
    for name, i in place.items():
        if name not in node_of:
            verdict.removed[i] = graph.removed.get(name, "a constant, or its elements lie where they are read")
        elif node_of[name] in refusals:
            verdict.messages[i] = refusals[node_of[name]]
        else:
            verdict.taken[i] = verdict.target
    return verdict


def _unreadable(model: ForeignModel) -> tuple[int, str] | None:
    """Return the first operator that the delegate cannot read as part of a graph, with the reason, or None."""
    if model.opset < MIN_OPSET:
        return 0, f"the file uses opset {model.opset}, the opencl delegate reads {MIN_OPSET} and later"
    for i, op in enumerate(model.ops):
        if op.domain:
            return i, f"node `{op.name}` is of the domain `{op.domain}`, the opencl delegate computes ONNX's own operators"
        if len(op.outputs) != 1:
            return i, f"node `{op.name}` writes {len(op.outputs)} tensors, the opencl delegate's kernels write one"
    opened = next((i for i, op in enumerate(model.ops) if op.dynamic), None)
    return None if opened is None else (opened, f"node `{model.ops[opened].name}` has tensors of no fixed shape")


#: By runtime: the delegate that checks whether it is installed, the kinds of files that it reads, and the function that asks it.
RUNTIMES: dict[str, tuple[str, tuple[str, ...], Callable[[ForeignModel, str | None], Verdict]]] = {
    "onnxruntime": ("cpu", ("ONNX",), ask_onnxruntime),
    "qnn": ("dsp", ("ONNX",), ask_qnn),
    "openvino": ("openvino", ("ONNX", "TFLite"), ask_openvino),
    "litert": ("litert", ("TFLite",), ask_litert),
    "opencl": ("opencl", ("ONNX",), ask_opencl),
}


def check_runtime(runtime: str, model: ForeignModel) -> None:
    """Refuse a runtime that is unknown, does not read this kind of file, or is not installed."""
    if runtime not in RUNTIMES:
        raise UnknownNameError.among("runtime", runtime, RUNTIMES)
    delegate, kinds, _ = RUNTIMES[runtime]
    if model.kind not in kinds:
        others = [name for name, (_, kinds, _) in RUNTIMES.items() if model.kind in kinds]
        raise UsageError(f"{runtime} does not read {model.kind} files, which {model.path} is", f"ask {' or '.join(others)}")
    if problem := delegates.get(delegate).unavailable():
        raise MissingBackendError(f"{runtime} is not available: {problem}")
