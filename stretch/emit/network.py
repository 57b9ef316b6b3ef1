"""A network as files of Python code and tensors."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from predictors.graph import Op, OpGraph
from predictors.joins import join_of, meeting_of
from stretch.capture import Captured
from stretch.emit.code import attribute, class_name, code_of
from stretch.emit.module import Written, write_class
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.design.scale import ScaledBranch, run_graph, scaled_branches
from stretch.transform import BranchedModel
from stretch.transform.parts import weights_in_parts

_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"

_SHARE = '''
def share(owner: nn.Module, other: nn.Module) -> None:
    """Let two branches have the same weights and statistics, as bands of rows of one image do."""
    for name, module in other.named_children():
        twin = getattr(owner, name, None)
        if twin is not None:
            module._parameters.update(twin._parameters)
            module._buffers.update(twin._buffers)
'''


@dataclass
class Sources:
    """A network as code."""

    name: str  # Of its class.
    modules: dict[str, str] = field(default_factory=dict)  # Text of each module of the package, by its name.
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)  # What fills its state dict.
    inputs: tuple[tuple[int, ...], ...] = ()  # Shapes of what it reads.


def captured_sources(captured: Captured) -> Sources:
    """A network as it is, as one class."""
    graph = captured.graph
    sources = Sources(class_name(graph.name), inputs=tuple(op.shape for op in graph.inputs))
    written = write_class(sources.name, graph, f"The network {_plain(graph.name)}.", captured.returned)
    imports = _helpers([written], sources, share=False)
    sources.modules["network"] = _module("The network.", [written], imports)
    _add_tensors(sources, written, "", {op: weights for op, weights in captured.weights.items() if op in written.attributes})
    return sources


def branched_sources(original: OpGraph, model: BranchedModel) -> Sources:
    """A branched network: a module a segment, a class a branch."""
    sources = Sources(class_name(original.name), inputs=tuple(op.shape for op in model.graph.inputs))
    every: list[Written] = []
    bands = False
    for part, branches in zip(model.design.segments, scaled_branches(original, model.design), strict=True):
        names = model.segment(part.name).order
        graphs = [run_graph(branch, scale) for branch, scale in zip(branches, part.branches, strict=True)]
        written = [
            write_class(class_name(f"branch_{part.name}_{name}"), graph, f"Segment {_plain(part.name)} on {_plain(processor)}.")
            for name, processor, graph in zip(names, part.names, graphs, strict=True)
        ]
        every += written
        shares = join_of(part.join).bands
        bands = bands or shares
        segment = _segment(part, names, written, branches)
        sources.modules[_file(part.name)] = _module(_kind(part), [*written, segment], _imports(written, share=shares))
        for number, (name, written_class) in enumerate(zip(names, written, strict=True)):
            branch_module = model.segment(part.name).get_submodule(name)
            weights = weights_in_parts(graphs[number], {op: _tensors(module) for op, module in branch_module.named_children()})
            ops = [op for op in written_class.attributes if not (shares and number and op in written[0].attributes)]
            _add_tensors(sources, written_class, f"{attribute(part.name)}.{attribute(name)}.", {op: weights[op] for op in ops})
    _helpers(every, sources, share=bands)
    sources.modules["network"] = _network(sources.name, [part.name for part in model.design.segments], original.name)
    return sources


def _file(segment: str) -> str:
    """The module of a segment; no other module of the package begins so."""
    return f"segment_{attribute(segment)}"


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and statistics, those included that are parts of another module's."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {key: tensor for key, tensor in tensors.items() if key != "num_batches_tracked"}


def _kind(part: SegmentDesign) -> str:
    """First sentence of a segment's module."""
    how = "one branch" if len(part.branches) == 1 else f"{len(part.branches)} branches" + (", exact" if join_of(part.join).exact else "")
    return f"Segment {_plain(part.name)}: {how}."


def _segment(part: SegmentDesign, names: list[str], written: list[Written], branches: list[ScaledBranch]) -> Written:
    """The class that runs a segment's branches and joins what they give."""
    attributes = [attribute(name) for name in names]
    lines = [f"class {class_name(_file(part.name))}(nn.Module):", f'    """{_kind(part)}"""', "", "    def __init__(self) -> None:"]
    lines += ["        super().__init__()"]
    lines += [f"        self.{name} = {written_class.name}()" for name, written_class in zip(attributes, written, strict=True)]
    join = join_of(part.join)
    if join.bands:
        lines += [f"        share(self.{attributes[0]}, self.{name})" for name in attributes[1:]]
    lines += ["", "    def forward(self, x: torch.Tensor) -> torch.Tensor:"]
    if join.placed:
        lines += [f"        {line}" for line in _handing_on(part, attributes, branches)]
    elif len(attributes) == 1:
        lines += [f"        return self.{attributes[0]}(x)"]
    else:
        kind = meeting_of(part.join).operator
        shape = branches[0].graph.by_name[branches[0].graph.output].shape
        joined = code_of(Op("join", kind), [shape] * len(attributes)).expression
        for number in reversed(range(len(attributes))):
            joined = joined.replace(f"{{{number}}}", f"self.{attributes[number]}(x)")
        lines += [f"        return {joined}"]
    return Written(class_name(_file(part.name)), "\n".join(lines) + "\n", {})


def _handing_on(part: SegmentDesign, attributes: list[str], branches: list[ScaledBranch]) -> list[str]:
    """Portions in their order, each on what it reads of the others."""
    variables = {part.start: "x"}
    lines = []
    for name, branch in zip(attributes, branches, strict=True):
        reads = ", ".join(variables[op.name] for op in branch.graph.inputs)
        for result in branch.graph.outputs:
            variables[result] = f"x{len(variables)}"
        results = ", ".join(variables[result] for result in branch.graph.outputs)
        lines.append(f"{results} = self.{name}({reads})")
    return [*lines, f"return {variables[part.end]}"]


def _network(name: str, segments: list[str], original: str) -> str:
    """The module of the whole network."""
    lines = ['"""The network."""', "", "import torch", "from torch import nn", ""]
    lines += [f"from .{_file(segment)} import {class_name(_file(segment))}" for segment in segments]
    lines += ["", "", f"class {name}(nn.Module):", f'    """The network {_plain(original)} in branches."""', ""]
    lines += ["    def __init__(self) -> None:", "        super().__init__()"]
    lines += [f"        self.{attribute(segment)} = {class_name(_file(segment))}()" for segment in segments]
    lines += ["", "    def forward(self, x: torch.Tensor) -> torch.Tensor:"]
    lines += [f"        x = self.{attribute(segment)}(x)" for segment in segments]
    return "\n".join([*lines, "        return x", ""])


def _module(docstring: str, classes: Iterable[Written], imports: str) -> str:
    body = "\n\n".join(written_class.text for written_class in classes)
    head = _HEAD if "F." in body else _HEAD.replace("import torch.nn.functional as F\n", "")
    return f'"""{docstring}"""\n\n{head}{imports}\n\n{body}'


def _imports(written: Iterable[Written], *, share: bool) -> str:
    names = sorted({helper.__name__ for written_class in written for helper in written_class.helpers}) + (["share"] if share else [])
    return f"\nfrom .layers import {', '.join(names)}\n" if names else ""


def _helpers(written: Iterable[Written], sources: Sources, *, share: bool) -> str:
    """Write the module of classes that the network's are made of, where it needs some; gives the line that imports them."""
    written = list(written)
    classes = sorted({helper for written_class in written for helper in written_class.helpers}, key=lambda helper: helper.__name__)
    if classes or share:
        texts = [inspect.getsource(helper) for helper in classes] + ([_SHARE.lstrip("\n")] if share else [])
        head = _HEAD if any("F." in text for text in texts) else _HEAD.replace("import torch.nn.functional as F\n", "")
        anything = "from typing import Any\n\n" if any("Any" in text for text in texts) else ""
        sources.modules["layers"] = (
            f'"""Layers that torch does not have."""\n\nfrom __future__ import annotations\n\n{anything}{head}\n\n' + "\n\n".join(texts)
        )
    return _imports(written, share=share)


def _add_tensors(sources: Sources, written: Written, prefix: str, weights: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    for op, tensors in weights.items():
        for key, tensor in tensors.items():
            sources.tensors[prefix + written.key(op, key)] = tensor.detach().cpu().contiguous()


def _plain(name: str) -> str:
    """A name in a docstring: letters, digits and a few signs, so that it cannot end it."""
    return "".join(c if c.isalnum() or c in "_-.[]:/ " else "_" for c in name)
