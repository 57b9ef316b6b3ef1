"""Write a model or the network of a bundle as a package of plain torch, in one step, and compare it with the network."""

import dataclasses
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn

from predictors.errors import StretchError, UsageError
from predictors.files import check_folder, new_folder
from predictors.graph import Op, OpGraph, SharedWeight, shared_weights
from predictors.joins import join_of, meeting_of
from scheduler.bundle.load import MANIFEST, load_bundle
from stretch.network.capture import Captured
from stretch.network.capture.inputs import InputShapes
from stretch.network.capture.results import OutputStructure, Result, output_structure, tensors
from stretch.network.capture.trace import is_close
from stretch.network.models.load import names_code
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.design.scale import ScaledBranch, remaining_shared_weights, run_graph, scaled_branches
from stretch.stages.network import read_network
from stretch.stages.reopen import load_bundle_model
from stretch.tools.emit.rules import ATTRIBUTE_PLACEHOLDER, OperatorCode, attribute, class_name, code_of, literal, sequence_code
from stretch.transform import BranchedModel
from stretch.transform.model import weights_in_parts

# A network as files of Python code and tensors.


def returned_code(template: Any, variables: Mapping[str, str]) -> str:
    """Return the code of a returned structure; dataclasses, whose classes belong to other packages, become dictionaries of their fields."""
    if isinstance(template, Result):
        result = variables[template.name]
        return result if template.dtype == torch.float32 else f"{result}.to({template.dtype})"
    if isinstance(template, dict):
        parts = [f"{literal(key)}: {returned_code(value, variables)}" for key, value in template.items()]
        return f"{{{', '.join(parts)}}}"
    if isinstance(template, tuple | list):
        return sequence_code(template, (returned_code(value, variables) for value in template))
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        return returned_code({field.name: getattr(template, field.name) for field in dataclasses.fields(template)}, variables)
    return literal(template)


def kind_of_returned(template: Any) -> str:
    """Return the type annotation of a function that returns a structure."""
    if isinstance(template, Result):
        return "torch.Tensor"
    return "list" if isinstance(template, list) else "tuple" if isinstance(template, tuple) else "dict"


#: Maximum number of nested calls on one line, and maximum length of the line.
MAX_NESTED, MAX_LINE = 3, 110

_PLACEHOLDER = re.compile(r"\{(\d+)\}")
#: Operators that need brackets within other expressions.
_LOOSE = re.compile(r" [+*/] ")


@dataclass(frozen=True)
class ClassText:
    """A class as text."""

    name: str  # Name of the class.
    text: str  # Text of the class.
    attributes: Mapping[str, str]  # Attribute of each operator with weights.
    #: Operators whose tensors are direct attributes of the class, named by the operator's attribute and the tensor's name.
    loose: frozenset[str] = frozenset()
    helpers: tuple[type[nn.Module], ...] = ()  # Classes of nn-stretch that the class needs.

    def key(self, op: str, weight: str) -> str:
        """Return the name of an operator's tensor in the class's state dict."""
        return f"{self.attributes[op]}_{weight}" if op in self.loose else f"{self.attributes[op]}.{weight}"


def shared_lines(weights: Iterable[Sequence[str]]) -> list[str]:
    """Return the constructor's lines that make attributes, such as ``conv1.weight``, share a tensor with the first one of their group."""
    return [f"self.{other} = self.{first}" for first, *others in weights for other in others]


def write_class(name: str, graph: OpGraph, docstring: str, returned: OutputStructure | None = None) -> ClassText:
    """Write a class that computes a graph: a module for each operator with weights, functions for all others."""
    writer = _ClassWriter(graph)
    lines = [f"class {name}(nn.Module):", f'    """{docstring}"""', "", "    def __init__(self) -> None:", "        super().__init__()"]
    lines += [f"        {line}" for line in writer.definitions]
    written = ClassText(name, "", writer.attributes, frozenset(writer.loose), tuple(dict.fromkeys(writer.helpers)))
    # the whole network shares the weights of branches
    shared = [[written.key(*holder) for holder in weight.holders] for weight in shared_weights([graph] if returned else [])]
    lines += [f"        {line}" for line in shared_lines(shared)]
    template = (returned or output_structure(graph)).template
    reads = ", ".join(f"{writer.sources[op.name]}: torch.Tensor" for op in graph.inputs)
    lines += ["", f"    def forward(self, {reads}) -> {kind_of_returned(template)}:"]
    *run, last = [*writer.run, f"return {returned_code(template, writer.results)}"]
    if len(graph.outputs) == 1 and run and run[-1].startswith(f"{last.removeprefix('return ')} = "):
        last = f"return {run.pop().partition(' = ')[2]}"
    lines += [f"        {line}" for line in (*run, last)]
    return replace(written, text="\n".join(lines) + "\n")


@dataclass
class _Line:
    """One assignment: a chain of operators, each of which is the only reader of the one before."""

    result: str  # Name of its last operator.
    reads: tuple[str, ...]  # Inputs of its first operator.
    expression: str  # Code of the chain, with placeholders for its inputs.
    depth: int = 1  # Number of operators in the chain.


class _ClassWriter:
    """Lines of a class's constructor and of its forward.

    A variable is reused once no later line reads it, so that tensors are freed as early as in nn-stretch.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.definitions: list[str] = []
        self.attributes: dict[str, str] = {}
        self.loose: set[str] = set()
        self.helpers: list[type[nn.Module]] = []
        self.sources: dict[str, str] = {}
        lines, same = self._lines()
        self.run, variables = self._assignments(lines, [same[output] for output in graph.outputs])
        #: Variable of each output.
        self.results = {output: variables[same[output]] for output in graph.outputs}

    def _lines(self) -> tuple[list[_Line], dict[str, str]]:
        """Return the assignments in order, and the operator that computes each tensor; operators that pass on their input are left out."""
        same: dict[str, str] = {}
        readers = self.graph.consumers
        open_ends: dict[str, _Line] = {}
        lines: list[_Line] = []
        for op in self.graph.ops:
            same[op.name] = op.name
            if op.kind == "input":
                continue
            code = code_of(op, self.graph.input_shapes(op))
            if code.passes:
                same[op.name] = same[op.inputs[0]]
                open_ends.pop(same[op.name], None)
                continue
            reads = tuple(same[name] for name in op.inputs)
            expression = code.expression.replace(ATTRIBUTE_PLACEHOLDER, self._add_attribute(op, code))
            before = open_ends.pop(reads[0], None) if len(reads) == 1 else None
            fits = before is not None and before.depth < MAX_NESTED and len(before.expression) + len(expression) < MAX_LINE
            if before is not None and fits and expression.count("{0}") == 1:
                lines.remove(before)
                line = _Line(op.name, before.reads, _substitute(expression, before.expression), before.depth + 1)
            else:
                line = _Line(op.name, reads, expression)
            lines.append(line)
            if len(readers[op.name]) == 1 and op.name not in self.graph.outputs:
                open_ends[op.name] = line
        return lines, same

    def _add_attribute(self, op: Op, code: OperatorCode) -> str:
        """Define an operator's modules and tensors, and return the expression by which forward accesses them."""
        self.helpers += code.helpers
        if not code.module and not code.tensors:
            return ""
        name = attribute(op.name)
        while name in self.attributes.values():
            name += "_"
        self.attributes[op.name] = name
        if code.module:
            self.definitions.append(f"self.{name} = {code.module}")
        else:
            self.loose.add(op.name)
        for key, (learned, value) in code.tensors.items():
            definition = f"self.{name}_{key} = nn.Parameter({value})" if learned else f'self.register_buffer("{name}_{key}", {value})'
            self.definitions.append(definition)
        return f"self.{name}"

    def _assignments(self, lines: list[_Line], outputs: list[str]) -> tuple[list[str], dict[str, str]]:
        """Return the lines of forward, and the final variables."""
        unread: dict[str, int] = {}
        for read in (*(line_read for line in lines for line_read in line.reads), *outputs):
            unread[read] = unread.get(read, 0) + 1
        variables: dict[str, str] = {}
        for op in self.graph.inputs:
            variables[op.name] = self.sources[op.name] = _free_variable(variables.values())
        for name in [op.name for op in self.graph.inputs if op.name not in unread]:
            del variables[name]
        run = []
        for line in lines:
            text = _with_names(line.expression, [variables[read] for read in line.reads])
            for read in line.reads:
                unread[read] -= 1
            for read in [name for name in dict.fromkeys(line.reads) if not unread[name]]:
                del variables[read]
            variables[line.result] = _free_variable(variables.values())
            run.append(f"{variables[line.result]} = {text}")
        return run, variables


def _substitute(outer: str, inner: str) -> str:
    """Insert one expression into another, in brackets if its operators would bind differently."""
    # a call already has brackets around its first argument
    bare = not re.search(r"\w\(\{0\}", outer)
    return outer.replace("{0}", f"({inner})" if bare and _LOOSE.search(inner) else inner)


def _with_names(expression: str, names: Sequence[str]) -> str:
    return _PLACEHOLDER.sub(lambda match: names[int(match[1])], expression)


def _free_variable(taken: Iterable[str]) -> str:
    """Return the first free name of ``x``, ``y``, ``z``, ``x3`` …."""
    used = set(taken)
    names = ("x", "y", "z", *(f"x{i}" for i in range(3, len(used) + 4)))
    return next(name for name in names if name not in used)


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

    name: str  # Name of its class.
    modules: dict[str, str] = field(default_factory=dict)  # Text of each module of the package, by its name.
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)  # Tensors of its state dict.
    inputs: tuple[tuple[int, ...], ...] = ()  # Shapes of its inputs.


#: Classes by the operators that they contain, each with the prefix of its attributes.
_Places = dict[str, list[tuple[str, ClassText]]]


def captured_sources(captured: Captured) -> Sources:
    """Write a captured network as one class."""
    graph = captured.graph
    sources = Sources(class_name(graph.name), inputs=tuple(op.shape for op in graph.inputs))
    written = write_class(sources.name, graph, f"The network {_docstring_name(graph.name)}.", captured.returned)
    imports = _helpers([written], sources, share=False)
    sources.modules["network"] = _module("The network.", [written], imports)
    _add_tensors(sources, written, "", {op: weights for op, weights in captured.weights.items() if op in written.attributes})
    return sources


def branched_sources(original: OpGraph, model: BranchedModel) -> Sources:
    """Write a branched network, with one module per segment and one class per branch."""
    many = next((verb for verb, ends in (("reads", original.inputs), ("gives", original.outputs)) if len(ends) > 1), None)
    if many:
        raise StretchError(
            f"the network {many} several tensors, and branches are written as code for one",
            "write the model itself with `stretch export MODEL --as code`, or the bundle with --as onnx",
        )
    sources = Sources(class_name(original.name), inputs=tuple(op.shape for op in model.graph.inputs))
    every: list[ClassText] = []
    places: _Places = {}
    bands = False
    for part, branches in zip(model.design.segments, scaled_branches(original, model.design), strict=True):
        names = model.segment(part.name).order
        graphs = [run_graph(branch, scale) for branch, scale in zip(branches, part.branches, strict=True)]
        written = [
            write_class(
                class_name(f"branch_{part.name}_{name}"), graph, f"Segment {_docstring_name(part.name)} on {_docstring_name(processor)}."
            )
            for name, processor, graph in zip(names, part.names, graphs, strict=True)
        ]
        every += written
        shares = part.division is not None and part.division.weights == "same"
        bands = bands or shares
        segment = _segment(part, names, written, branches)
        sources.modules[_file(part.name)] = _module(_segment_summary(part), [*written, segment], _imports(written, share=shares))
        for number, (name, written_class) in enumerate(zip(names, written, strict=True)):
            branch_module = model.segment(part.name).get_submodule(name)
            weights = weights_in_parts(graphs[number], {op: _tensors(module) for op, module in branch_module.named_children()})
            ops = [op for op in written_class.attributes if not (shares and number and op in written[0].attributes)]
            prefix = f"{attribute(part.name)}.{attribute(name)}."
            _add_tensors(sources, written_class, prefix, {op: weights[op] for op in ops})
            for op in written_class.attributes:
                places.setdefault(op, []).append((prefix, written_class))
    _helpers(every, sources, share=bands)
    shared = _shared_attributes(remaining_shared_weights(original, model.design), places, sources.tensors)
    sources.modules["network"] = _network(sources.name, [part.name for part in model.design.segments], original.name, shared)
    return sources


def _shared_attributes(weights: Sequence[SharedWeight], places: _Places, tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return the groups of network attributes that share one tensor because operators share weights: whole weights, or equal parts."""
    groups: dict[tuple[int, str], list[list[str]]] = {}
    for number, weight in enumerate(weights):
        for prefix, path in [(prefix, f"{prefix}{text.key(op, key)}") for op, key in weight.holders for prefix, text in places.get(op, ())]:
            # bands of one image have no tensors of their own
            whole = path not in tensors or tensors[path].numel() == weight.size
            equal = groups.setdefault((number, "" if whole else prefix), [])
            group = next((paths for paths in equal if path not in tensors or torch.equal(tensors[paths[0]], tensors[path])), [])
            if not group:
                equal.append(group)
            group.append(path)
    return [group for equal in groups.values() for group in equal if len(group) > 1]


def _file(segment: str) -> str:
    """Return the module name of a segment; other modules of the package begin differently."""
    return f"segment_{attribute(segment)}"


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and statistics, including those that are parts of another module's."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {key: tensor for key, tensor in tensors.items() if key != "num_batches_tracked"}


def _segment_summary(part: SegmentDesign) -> str:
    """Return the first sentence of the docstring of a segment's module."""
    branches = (
        "one branch" if len(part.branches) == 1 else f"{len(part.branches)} branches" + (", exact" if join_of(part.join).exact else "")
    )
    return f"Segment {_docstring_name(part.name)}: {branches}."


def _segment(part: SegmentDesign, names: list[str], written: list[ClassText], branches: list[ScaledBranch]) -> ClassText:
    """Write the class that runs a segment's branches and joins their outputs."""
    attributes = [attribute(name) for name in names]
    lines = [
        f"class {class_name(_file(part.name))}(nn.Module):",
        f'    """{_segment_summary(part)}"""',
        "",
        "    def __init__(self) -> None:",
    ]
    lines += ["        super().__init__()"]
    lines += [f"        self.{name} = {written_class.name}()" for name, written_class in zip(attributes, written, strict=True)]
    join = join_of(part.join)
    if part.division is not None and part.division.weights == "same":
        lines += [f"        share(self.{attributes[0]}, self.{name})" for name in attributes[1:]]
    lines += ["", "    def forward(self, x: torch.Tensor) -> torch.Tensor:"]
    if join.hands_on:
        lines += [f"        {line}" for line in _order_portions(part, attributes, branches)]
    elif len(attributes) == 1:
        lines += [f"        return self.{attributes[0]}(x)"]
    else:
        kind = meeting_of(part.join).operator
        shape = branches[0].graph.by_name[branches[0].graph.output].shape
        joined = code_of(Op("join", kind), [shape] * len(attributes)).expression
        for number in reversed(range(len(attributes))):
            joined = joined.replace(f"{{{number}}}", f"self.{attributes[number]}(x)")
        lines += [f"        return {joined}"]
    return ClassText(class_name(_file(part.name)), "\n".join(lines) + "\n", {})


def _order_portions(part: SegmentDesign, attributes: list[str], branches: list[ScaledBranch]) -> list[str]:
    """Return the lines that run the portions in order, each on its inputs from the others."""
    variables = {part.start: "x"}
    lines = []
    for name, branch in zip(attributes, branches, strict=True):
        reads = ", ".join(variables[op.name] for op in branch.graph.inputs)
        for result in branch.graph.outputs:
            variables[result] = f"x{len(variables)}"
        results = ", ".join(variables[result] for result in branch.graph.outputs)
        lines.append(f"{results} = self.{name}({reads})")
    return [*lines, f"return {variables[part.end]}"]


def _network(name: str, segments: list[str], original: str, shared: list[list[str]]) -> str:
    """Write the module of the whole network."""
    lines = ['"""The network."""', "", "import torch", "from torch import nn", ""]
    lines += [f"from .{_file(segment)} import {class_name(_file(segment))}" for segment in segments]
    lines += ["", "", f"class {name}(nn.Module):", f'    """The network {_docstring_name(original)} in branches."""', ""]
    lines += ["    def __init__(self) -> None:", "        super().__init__()"]
    lines += [f"        self.{attribute(segment)} = {class_name(_file(segment))}()" for segment in segments]
    lines += [f"        {line}" for line in shared_lines(shared)]
    lines += ["", "    def forward(self, x: torch.Tensor) -> torch.Tensor:"]
    lines += [f"        x = self.{attribute(segment)}(x)" for segment in segments]
    return "\n".join([*lines, "        return x", ""])


def _module(docstring: str, classes: Iterable[ClassText], imports: str) -> str:
    body = "\n\n".join(written_class.text for written_class in classes)
    head = _HEAD if "F." in body else _HEAD.replace("import torch.nn.functional as F\n", "")
    return f'"""{docstring}"""\n\n{head}{imports}\n\n{body}'


def _imports(written: Iterable[ClassText], *, share: bool) -> str:
    names = sorted({helper.__name__ for written_class in written for helper in written_class.helpers}) + (["share"] if share else [])
    return f"\nfrom .layers import {', '.join(names)}\n" if names else ""


def _helpers(written: Iterable[ClassText], sources: Sources, *, share: bool) -> str:
    """Write the module of helper classes, if any are needed; return the line that imports them."""
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


def _add_tensors(sources: Sources, written: ClassText, prefix: str, weights: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    for op, parameters in weights.items():
        for key, tensor in parameters.items():
            sources.tensors[prefix + written.key(op, key)] = tensor.detach().cpu().contiguous()


def _docstring_name(name: str) -> str:
    """Return a name that is safe in a docstring: letters, digits and a few signs, so that it cannot end the docstring."""
    return "".join(c if c.isalnum() or c in "_-.[]:/ " else "_" for c in name)


WEIGHTS = "model.safetensors"

_INIT = '''"""{docstring}"""

from pathlib import Path

from safetensors.torch import load_model

from .network import {name}

__all__ = ["{name}", "load"]


def load() -> {name}:
    """The network with the weights of this folder, in evaluation mode."""
    model = {name}()
    load_model(model, Path(__file__).with_name("{weights}"))
    return model.eval()
'''

_EXAMPLE = '''"""Run the network on random input, and export it by torch: python -m {package}.example, from the folder above."""

import torch

from . import load

model = load()
example = ({inputs},)
with torch.no_grad():
    result = model(*example)
print([tuple(each.shape) for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, torch.Tensor)])
torch.export.save(torch.export.export(model, example), "{package}.pt2")
'''


class EmitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A written package."""

    package: Path  # Folder of the package.
    network: str  # Name of the network.
    branched: bool  # Whether it is the network of a bundle.
    files: list[str]  # Names of its files.
    segments: int  # Number of segments of a bundle's network.
    max_error: float  # Maximum difference of its outputs from the network's, relative to the largest output.
    warnings: list[str]  # Warnings for the user.


def emit(
    source: str, out: str | Path, shape: InputShapes | None = None, *, weights: str = "default", seed: int = 0, trust_code: bool = False
) -> EmitAnswer:
    """Write a model, or the branched network of a bundle, as a Python package without nn-stretch.

    Args:
        shape: Input shape of a model, batch first; its default one if None.
        weights: Weights of a model: ``default``, ``none`` or a file.
    """
    folder = Path(out)
    check_package(folder)
    model: nn.Module
    warnings: list[str] = []
    if (Path(source) / MANIFEST).is_file() or (Path(source).is_dir() and not names_code(source)):
        if shape is not None or weights != "default":
            raise UsageError(f"{source} is a bundle, which has its own input and weights", "leave the options of a model out")
        bundle = load_bundle(source, check_hashes=True)
        original, model = load_bundle_model(bundle)
        sources, suffix = branched_sources(original.graph, model), " in branches"
        name, segments = bundle.manifest.model.name, len(model.design.segments)
    else:
        network = read_network(source, shape, weights=weights, seed=seed, trust_code=trust_code).portable
        sources, suffix, model = captured_sources(network.captured), "", network.captured.module
        name, segments, warnings = network.graph.name, 1, list(network.loaded.warnings)
    files, error = write_package(folder, sources, model, f"{sources.name}{suffix}, written by nn-stretch.")
    branched = bool(suffix)
    return EmitAnswer(package=folder, network=name, branched=branched, files=files, segments=segments, max_error=error, warnings=warnings)


def check_package(out: Path) -> None:
    """Refuse a folder that the package cannot be written to, before any work."""
    if not out.name.isidentifier():
        raise UsageError(f"`{out.name}` is no name of a Python package", "name the folder by letters, digits and underscores")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"there is something at {out} already", "name another folder, or remove it")
    check_folder(out, "--out")


def write_package(out: Path, sources: Sources, model: nn.Module, docstring: str) -> tuple[list[str], float]:
    """Write the files, import them, and check that they compute the same as the network."""
    with new_folder(out, "package") as folder:
        _write(folder, out.name, sources, docstring)
        error = _fill_and_compare(folder, sources, model)
        return sorted(file.name for file in folder.iterdir()), error


def _write(folder: Path, package: str, sources: Sources, docstring: str) -> None:
    inputs = ", ".join(f"torch.randn({', '.join(map(str, shape))})" for shape in sources.inputs)
    for name, text in sources.modules.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "__init__.py").write_text(_INIT.format(docstring=docstring, name=sources.name, weights=WEIGHTS))
    (folder / "example.py").write_text(_EXAMPLE.format(package=package, inputs=inputs))


def _fill_and_compare(folder: Path, sources: Sources, model: nn.Module) -> float:
    """Load the weights into the network of the package, write them, and compare the outputs."""
    with _import_package(folder) as package:
        module = getattr(package, sources.name)()
        missing, unexpected = module.load_state_dict(sources.tensors, strict=False)
        state = module.state_dict()
        # a tensor may have been loaded under another name
        filled = {(state[name].data_ptr(), state[name].shape) for name in sources.tensors if name in state}
        shared = [name for name in missing if (state[name].data_ptr(), state[name].shape) in filled]
        lacking = [name for name in missing if name not in shared and not name.endswith("num_batches_tracked")]
        if lacking or unexpected:
            raise StretchError(f"the package lacks `{(lacking or unexpected)[0]}`", "please report this")
        try:
            save_model(module, str(folder / WEIGHTS))
        except SafetensorError as failure:
            raise OSError(str(failure)) from failure
        loaded = package.load()
        generator = torch.Generator().manual_seed(0)
        xs = [torch.randn(shape, generator=generator) for shape in sources.inputs]
        with torch.no_grad():
            results, expected = loaded(*(x.clone() for x in xs)), model(*(x.clone() for x in xs))
    largest = 0.0
    for a, b in zip(tensors(results), tensors(expected), strict=True):
        if not is_close(a, b):
            raise StretchError("the package computes something else than the network", "please report this")
        largest = max(largest, float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)))
    return largest


@contextmanager
def _import_package(folder: Path) -> Iterator[ModuleType]:
    """Import the package of a folder, and remove it from the imported modules afterwards."""
    name = f"_nn_stretch_emitted_{folder.name}"
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.dont_write_bytecode = kept
        for module_name in [module_name for module_name in sys.modules if module_name == name or module_name.startswith(f"{name}.")]:
            del sys.modules[module_name]
