"""Operator support of ONNX Runtime, from its record of the provider that takes each operator."""

import re
import tempfile
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from predictors.errors import UnknownNameError
from scheduler.delegates.cpu import load_runtime
from scheduler.tools.explain.answer import Verdict
from scheduler.tools.explain.model import ForeignModel

_SUFFIX = "ExecutionProvider"

#: Providers that send what they compute elsewhere.
_REMOTE = ("azure",)

#: Bytes of a file whose optimised form is looked at for operators that were added.
_LOOKED_AT = 1 << 28

#: How types of operators begin that ONNX Runtime adds between providers and precisions.
_ADDED = ("Cast", "Memcpy")

#: Types of operators that are put in at borders.
_CONVERSIONS = ("Transpose", "Cast")

#: What providers that want channels last append to the names of operators that they turn round.
_TURNED = re.compile(r"_token_\d+$")

#: Names and types of operators in its messages.
_NAMED = (re.compile(r"node with name '([^']+)'"), re.compile(r"[Nn]ode[ :(]+'?\"?([^\s'\")]+)"))
_TYPED = (
    re.compile(r"([\w.]+:)?(\w+)\(-?\d+\) is not a registered"),
    re.compile(r"No Op registered for (\w+)"),
    re.compile(r"implementation for (\w+)\("),
)


def ask(model: ForeignModel, device: str | None) -> Verdict:
    """What a session assigns to which provider.

    Args:
        device: A provider in small letters without its last words, such as ``cuda``; the first one beside the CPU's if None.
    """
    onnxruntime = load_runtime()
    there = {name.removesuffix(_SUFFIX).lower(): name for name in onnxruntime.get_available_providers()}
    there = {name: provider for name, provider in there.items() if name not in _REMOTE}
    device = device or next((name for name in there if name != "cpu"), "cpu")
    if device not in there:
        raise UnknownNameError.among("device of onnxruntime", device, there)
    verdict = Verdict(runtime=f"onnxruntime {onnxruntime.__version__}", device=device, target=there[device])
    if device == "cpu" and len(there) == 1:
        verdict.warnings.append("ONNX Runtime has no provider for an accelerator on this machine: its CPU provider is used")
    options = onnxruntime.SessionOptions()
    providers = [there[device], *([there["cpu"]] if device != "cpu" else [])]
    return read_session(onnxruntime, model, options, verdict, providers=providers)


def read_session(onnxruntime: ModuleType, model: ForeignModel, options: Any, verdict: Verdict, **settings: Any) -> Verdict:
    """Fill in what a session with these options assigns, or why it is refused."""
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
        # ONNX Runtime's exceptions share no base class of their own.
        except Exception as error:
            verdict.refused = " ".join(str(error).split())[:600]
            verdict.at = find_named(model, verdict.refused)
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
            verdict.gone[i] = "folded or merged by ONNX Runtime before it asks its providers"
    return verdict


def find_named(model: ForeignModel, words: str) -> int | None:
    """Place of the first operator that a message names, by its name or else by its type."""
    names = {op.name: i for i, op in reversed(list(enumerate(model.ops)))}
    for pattern in _NAMED:
        for name in pattern.findall(words):
            if name.rstrip(".,:") in names:
                return names[name.rstrip(".,:")]
    types = {op.op: i for i, op in reversed(list(enumerate(model.ops)))}
    for pattern in _TYPED:
        match = pattern.search(words)
        if match and match.groups()[-1] in types:
            return types[match.groups()[-1]]
    return None


def _count_added(optimised: Path, names: Collection[str]) -> int:
    """Operators that ONNX Runtime put in to change precision or memory, beside the file's own."""
    import onnx

    nodes = onnx.load(str(optimised), load_external_data=False).graph.node
    return sum(node.name not in names and node.op_type.startswith(_ADDED) for node in nodes)
