"""The branched network as a torch module: segments of branches that meet at joins."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from predictors.errors import UsageError
from predictors.graph import OpGraph
from predictors.joins import join_of, meeting_of
from predictors.rewrites import owner_of
from stretch.network.capture.results import OutputStructure, output_structure
from stretch.operators.lowerings import lowerings, make_module
from stretch.planning.design.branch_design import BranchDesign, SegmentDesign, Taken, safe_name, undivided
from stretch.planning.design.scale import ScaledBranch, remaining_shared_weights, scaled_branches, scaled_graph
from stretch.planning.network.segments import backbone_of

#: Tensors or arrays by operator and key.
Weights = dict[str, dict[str, Any]]


def weights_in_parts(graph: OpGraph, weights: Mapping[str, Mapping[str, Any]]) -> Weights:
    """Return a graph's weights with an operator's weights divided among its parts; the parts share its storage.

    Args:
        graph: The graph as processors run it (`predictors.rewrites`).
    """
    in_parts: Weights = {name: dict(tensors) for name, tensors in weights.items()}
    for owner, parts in _parts(graph).items():
        for key, tensor in in_parts.pop(owner, {}).items():
            rows = len(tensor) // len(parts)
            for number, name in enumerate(parts):
                in_parts.setdefault(name, {})[key] = tensor[number * rows : (number + 1) * rows]
    return in_parts


def weights_of_wholes(graph: OpGraph, weights: Mapping[str, Mapping[str, Any]]) -> Weights:
    """Return the inverse of `weights_in_parts`; an operator lacks a weight if one of its parts lacks it."""
    in_wholes: Weights = {name: dict(tensors) for name, tensors in weights.items()}
    for owner, parts in _parts(graph).items():
        part_weights = [in_wholes.pop(name, {}) for name in parts]
        common = [key for key in part_weights[0] if all(key in tensors for tensors in part_weights)]
        in_wholes[owner] = {key: torch.cat([tensors[key] for tensors in part_weights]) for key in common}
    return in_wholes


def _parts(graph: OpGraph) -> dict[str, list[str]]:
    """Return the parts with weights of each divided operator, in order of their channels."""
    parts: dict[str, list[str]] = {}
    for op in graph.ops:
        if owner_of(op) != op.name and graph.op_weights(op):
            parts.setdefault(owner_of(op), []).append(op.name)
    return parts


Network = TypeVar("Network", bound=nn.Module)


def to_channels_last(module: Network) -> Network:
    """Store the weights of a network's convolutions channels last, which is faster on GPUs, and return the network."""
    # torch's stub of `Module.to` lacks this form, although its documentation has it
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def statistics_of(norm: nn.modules.batchnorm._BatchNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch norm's stored mean and variance, (channels,) each."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


#: Name of the statistic without a channel axis: a batch norm's number of batches.
_COUNTER = "num_batches_tracked"


def share_slices(undivided: nn.Module, branch: nn.Module, taken: Mapping[str, Taken]) -> None:
    """Replace weights and statistics of a branch of channels by views of the whole segment's.

    In-place changes of the whole segment's tensors therefore change the
    branch's. The views are neither parameters nor part of a state dict, and have no
    gradients.
    """
    owners = dict(undivided.named_children())
    for name, module in branch.named_children():
        if name not in taken:
            continue
        owner = owners[name]
        for key, tensor in {**owner._parameters, **owner._buffers}.items():
            if tensor is None or (module._parameters.get(key) is None and module._buffers.get(key) is None):
                continue
            if key == _COUNTER:
                module._buffers[key] = tensor
                continue
            module._parameters.pop(key, None)
            module._buffers.pop(key, None)
            module.register_buffer(key, _part(tensor.detach(), key, taken[name]), persistent=False)


def _part(tensor: torch.Tensor, key: str, taken: Taken) -> torch.Tensor:
    """Return the rows of a tensor that a branch has, and for a projection's matrix also the columns."""
    rows = taken.rows(len(tensor))
    part = tensor[rows.start : rows.stop]
    if key in taken.zeros:
        return torch.zeros_like(part)
    if key == "weight" and taken.columns is not None:
        return part[:, taken.columns.start : taken.columns.stop]
    return part


#: Key of the first segment's input among the values of a network; no operator has this name.
BACKBONE = " backbone"


class Branch(nn.Module):
    """A scaled copy or a part of a segment, for one processor; its submodules are its operators.

    Args:
        graph: The branch's operators, including its own part of the join.

    Attributes:
        sources: Names of its inputs, in order.
        results: Names of its outputs.
    """

    def __init__(self, graph: OpGraph) -> None:
        super().__init__()
        self.sources, self.results = tuple(op.name for op in graph.inputs), graph.outputs
        #: (operator, its inputs, tensors that no later operator reads)
        self.steps: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        last = {name: op.name for op in graph.ops for name in op.inputs}
        for op in graph.ops:
            if op.kind != "input":
                self.add_module(op.name, make_module(op, graph.input_shapes(op)))
                done = tuple(n for n in dict.fromkeys(op.inputs) if last[n] == op.name and n not in graph.outputs)
                self.steps.append((op.name, op.inputs, done))

    def forward(self, *arriving: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the operators in order, keeping only tensors that are still needed.

        Args:
            arriving: One tensor for each of `sources`.

        Returns:
            The result, or a tuple of several results in the order of `results`.
        """
        values = dict(zip(self.sources, arriving, strict=True))
        for name, inputs, done in self.steps:
            values[name] = self.get_submodule(name)(*[values[i] for i in inputs])
            for old in done:
                del values[old]
        return values[self.results[0]] if len(self.results) == 1 else tuple(values[name] for name in self.results)


class BranchedSegment(nn.Module):
    """Computation between two meeting points.

    Bands of rows share their weights and statistics. Branches of
    channels have parts of the weights of the undivided segment. In training
    mode both are computed undivided, so that batch norms see whole images and
    gradients equal the original's. Channels are also undivided whenever gradients are
    recorded, because parts of weights have none. Portions run in order, each as soon as
    its inputs are available.

    Args:
        design: Design of the segment.
        branches: Scaled branches of the segment, in the design's order.
        undivided: The undivided segment, if its branches are bands or channels of it.

    Attributes:
        whole: For branches of channels: the undivided segment, which has the weights.
        parallel: Whether each branch runs on its own CUDA stream, forward and
            backward; a GPU that one narrow branch cannot fill then runs several at once.
    """

    def __init__(self, design: SegmentDesign, branches: Sequence[ScaledBranch], undivided: OpGraph | None = None) -> None:
        super().__init__()
        # in a tuple, so that torch does not register it, because it has no weights of its own
        self._whole = tuple(Branch(graph) for graph in (undivided,) if graph is not None)
        division = design.division
        self._taken = tuple(branch.taken for branch in branches) if division is not None and division.weights == "slices" else ()
        if self._taken:
            (self.whole,) = self._whole
        self.parallel = False
        self._streams: list[torch.cuda.Stream] = []
        self.order = [safe_name(name) for name in design.names]
        self.start, self.end, self.placed = design.start, design.end, join_of(design.join).hands_on
        for name, branch in zip(self.order, branches, strict=True):
            self.add_module(name, Branch(branch.graph))
        if len(branches) > 1 and not self.placed:
            self.join = lowerings.get(meeting_of(design.join).operator).module([], {})
        self._share()

    @property
    def owner(self) -> Branch:
        """Module with the weights of a segment: the undivided one for branches of channels, else the first branch."""
        owner = self.whole if self._taken else self.get_submodule(self.order[0])
        assert isinstance(owner, Branch)
        return owner

    @property
    def owners(self) -> list[Branch]:
        """Modules with the weights of a segment: the owner of shared weights, or every branch."""
        branches = [module for name in self.order if isinstance(module := self.get_submodule(name), Branch)]
        return [self.owner] if self._whole else branches

    def _share(self) -> None:
        """Share weights and statistics: bands use the first band's tensors, branches of channels use views of the undivided segment's."""
        for name, taken in zip(self.order, self._taken, strict=False):
            share_slices(self.whole, self.get_submodule(name), taken)
        if self._taken:
            return
        first, *others = (self.get_submodule(name) for name in self.order)
        for other in (*others, *self._whole) if self._whole else ():
            for name, module in other.named_children():
                replacement = dict(first.named_children()).get(name)
                if replacement is not None:
                    module._parameters.update(replacement._parameters)
                    module._buffers.update(replacement._buffers)

    def _apply(self, fn: Any, recurse: bool = True) -> "BranchedSegment":
        """Move or convert the module; shared tensors stay shared."""
        nn.Module._apply(self, fn, recurse)
        self._share()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the branches and join their outputs."""
        # tracers use proxies without storage
        recording = bool(self._taken) and torch.is_grad_enabled() and isinstance(x, torch.Tensor)
        if self._whole and (self.training or recording):
            output: torch.Tensor = self._whole[0].train(self.training)(x)
            return output
        if self.placed:
            return self._run_portions(x)
        if self.parallel and x.is_cuda and len(self.order) > 1:
            outputs = self._run_on_streams(x)
        else:
            outputs = [self.get_submodule(name)(x) for name in self.order]
        return outputs[0] if len(outputs) == 1 else self.join(*outputs)

    def _run_portions(self, x: torch.Tensor) -> torch.Tensor:
        """Run portions in order, each on its inputs from the others."""
        values = {self.start: x}
        for name in self.order:
            portion = self.get_submodule(name)
            assert isinstance(portion, Branch)
            written = portion(*(values[source] for source in portion.sources))
            values.update(zip(portion.results, written if len(portion.results) > 1 else (written,), strict=True))
        return values[self.end]

    def _run_on_streams(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Run the first branch on the current stream and the others at the same time."""
        current = torch.cuda.current_stream(x.device)
        if not self._streams:
            self._streams = [torch.cuda.Stream(x.device) for _ in self.order[1:]]
        for stream in self._streams:
            stream.wait_stream(current)
        others = []
        for name, stream in zip(self.order[1:], self._streams, strict=True):
            with torch.cuda.stream(stream):
                others.append(self.get_submodule(name)(x))
        first = self.get_submodule(self.order[0])(x)
        for stream, output in zip(self._streams, others, strict=True):
            current.wait_stream(stream)
            # Without this call the allocator could reuse the memory while this stream still reads it.
            output.record_stream(current)
            x.record_stream(stream)
        return [first, *others]


class Side(nn.Module):
    """A part of the network outside its backbone, as one branch."""

    def __init__(self, graph: OpGraph, processor: str) -> None:
        super().__init__()
        self._name = safe_name(processor)
        self.add_module(self._name, Branch(graph))

    @property
    def branch(self) -> Branch:
        """Branch with the side's operators."""
        branch = self.get_submodule(self._name)
        assert isinstance(branch, Branch)
        return branch

    def forward(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the side's outputs by name."""
        branch = self.branch
        written = branch(*(values[name] for name in branch.sources))
        return dict(zip(branch.results, written if len(branch.results) > 1 else (written,), strict=True))


class BranchedModel(nn.Module):
    """A network stretched into branches (the paper's G_branch), which can be printed, trained and saved.

    Args:
        graph: Graph of the original network.
        design: A design for the network.
        returned: Structure of the original's results; its output, or a tuple of several outputs, if None.
        branched: Scaled branches of the design, if they are already known.

    Attributes:
        design: Design of the model.
        graph: Operator graph of the model; operator names are submodule names with
            underscores for dots. An operator that a processor runs in parts (`predictors.rewrites`) is one
            submodule; only the graph has the parts.
        inputs: Names of its inputs, in the order of the forward's arguments.
        original_outputs: The original's names of the graph's outputs, in order.
        returned: Structure of its results, with the original's names.

    Raises:
        StretchError: If the design does not fit the network.
    """

    def __init__(
        self,
        graph: OpGraph,
        design: BranchDesign,
        returned: OutputStructure | None = None,
        branched: Sequence[Sequence[ScaledBranch]] | None = None,
    ) -> None:
        super().__init__()
        self.design = design
        branched = branched or scaled_branches(graph, design)
        self.graph = scaled_graph(graph, design, branched)
        self.inputs = tuple(op.name for op in graph.inputs)
        self.original_outputs = graph.outputs
        self.returned = returned or output_structure(graph)
        backbone = backbone_of(graph)
        self._start, self._before, self._after = (
            backbone.graph.input.name,
            [s.name for s in backbone.before],
            [s.name for s in backbone.after],
        )
        self._chain = not backbone.sides and len(graph.outputs) == 1 and self.returned.is_single_tensor
        parts = any(part.shares_weights for part in design.segments)
        undivided_branches = scaled_branches(graph, undivided(design)) if parts else branched
        for part, branches, (whole, *_) in zip(design.segments, branched, undivided_branches, strict=True):
            self.add_module(part.name, BranchedSegment(part, branches, whole.graph if part.shares_weights else None))
        for side, side_design in zip(backbone.sides, design.sides, strict=True):
            self.add_module(side.name, Side(side, side_design.processor))
        self._shared = remaining_shared_weights(graph, design)
        self._share()

    def _share(self) -> None:
        """Share weights and statistics that the original's operators share, as when a module is called twice."""
        if not self._shared:
            return
        segments = [self.segment(part.name) for part in self.design.segments]
        parts = [part for segment in segments for part in segment.owners] + [side.branch for side in self.sides.values()]
        modules = {name: module for part in parts for name, module in part.named_children()}
        for weight in self._shared:
            (first, key), *others = weight.holders
            tensor = modules[first].get_parameter(key) if key in modules[first]._parameters else modules[first].get_buffer(key)
            for name, other in others:
                holder: dict[str, Any] = modules[name]._parameters if other in modules[name]._parameters else modules[name]._buffers
                holder[other] = tensor
        for segment in segments:
            segment._share()

    def _apply(self, fn: Any, recurse: bool = True) -> "BranchedModel":
        """Move or convert the module; shared tensors stay shared."""
        nn.Module._apply(self, fn, recurse)
        self._share()
        return self

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        """Run all segments and sides.

        Args:
            x: The first of `inputs`; `others` are the remaining ones.

        Returns:
            The original's results.

        Raises:
            UsageError: If the number of inputs is wrong: other arguments of the original were fixed when it was captured.
        """
        # torch.fx passes a proxy for all further inputs
        if isinstance(others, tuple) and len(others) + 1 != len(self.inputs):
            raise UsageError(f"the network takes {', '.join(self.inputs)}, {len(others) + 1} tensors were given")
        if self._chain:
            for part in self.design.segments:
                x = self.get_submodule(part.name)(x)
            return x
        return self.returned.substitute(self.values((x, *others) if len(self.inputs) > 1 else (x,)))

    def values(self, inputs: Sequence[torch.Tensor], instead: Mapping[str, nn.Module] | None = None) -> dict[str, torch.Tensor]:
        """Return the inputs, the ends of segments and the outputs of sides, by the original's names.

        Args:
            instead: Modules that compute segments instead of the model's own, by the segment's name.
        """
        tensors = self.beginning(inputs)
        x = tensors.pop(BACKBONE)
        for part in self.design.segments:
            segment = self.get_submodule(part.name) if instead is None or part.name not in instead else instead[part.name]
            x = tensors[part.end] = segment(x)
        return self.ending(tensors)

    def beginning(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values before the first segment by name: inputs, outputs of sides that read only these, and the segment's `BACKBONE`."""
        tensors = dict(zip(self.inputs, inputs, strict=True))
        for name in self._before:
            tensors |= self.get_submodule(name)(tensors)
        return tensors | {BACKBONE: tensors[self._start]}

    def ending(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values with the outputs of sides after the last segment added.

        Args:
            values: Inputs, ends of segments and outputs of earlier sides, by name.
        """
        tensors = dict(values)
        for side in self.after:
            tensors |= side(tensors)
        return tensors

    @property
    def after(self) -> list[Side]:
        """Sides that run after the last segment, in order."""
        return [module for name in self._after if isinstance(module := self.get_submodule(name), Side)]

    @property
    def sides(self) -> dict[str, Side]:
        """All sides by name."""
        return {name: module for name in (*self._before, *self._after) if isinstance(module := self.get_submodule(name), Side)}

    def segment(self, name: str) -> BranchedSegment:
        """Return a segment by its name."""
        segment = self.get_submodule(name)
        assert isinstance(segment, BranchedSegment)
        return segment

    def branch(self, segment: str, name: str) -> Branch:
        """Return a branch of a segment by its name in the design, that of its processor."""
        branch = self.get_submodule(f"{segment}.{safe_name(name)}")
        assert isinstance(branch, Branch)
        return branch


def op_weights(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the weights of a `BranchedModel` or `Branch` by operator name, as tensors that share the module's storage.

    The operators are those of a `BranchedModel`'s graph, which processors may run in parts.
    """
    weights: dict[str, dict[str, Any]] = {}
    for name, part in module.named_modules():
        tensors = dict(part.named_parameters(recurse=False)) | dict(part.named_buffers(recurse=False))
        tensors.pop("num_batches_tracked", None)
        if tensors:
            weights[name.replace(".", "_")] = {key: tensor.detach() for key, tensor in tensors.items()}
    return weights_in_parts(module.graph, weights) if isinstance(module, BranchedModel) else weights
