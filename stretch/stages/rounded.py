"""Quantisation-aware training and refinement: a branched network that rounds each branch to its processor's precision, with straight-through gradients.

The exporter's quantiser decides on the rounded tensors and scales of an int8 branch, and
`stretch export` reuses the same scales. So training sees the exported network.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError
from predictors.joins import join_of
from predictors.rewrites import PART
from stretch.export.lowering import scales_of, subgraph_of
from stretch.export.onnx import to_numpy, to_onnx
from stretch.export.quantize.qdq import quantise
from stretch.planning.design.branch_design import safe_name
from stretch.transform.model import Branch, BranchedModel, op_weights, statistics_of

#: Largest integer of a weight in int8, whose scale is symmetric.
WEIGHT_LEVELS = 127
#: Minimum that the exporter's quantiser uses for the largest weight of a channel, for example of zeros.
MIN_RANGE = 1e-4
#: Largest number of half precision.
MAX_FP16 = torch.finfo(torch.float16).max
#: Integer range of activations.
INT8_RANGE = (0, 255)

#: Rounds a tensor, given its name in the bundle, and returns it with its scale; None without a scale.
Rounding = Callable[[str, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]

#: Scale and zero point of tensors, by subgraph and tensor.
Ranges = dict[str, dict[str, tuple[float, int]]]


class RoundedModel(nn.Module):
    """A branched network with rounded weights and tensors, as `stretch export` writes it.

    Batch norms keep their initial statistics and are folded into the layer before them, as in the files. In int8
    weights have a symmetric scale per output channel, which follows the weights; tensors have a fixed scale and zero point, which
    the exporter's quantiser determines from images. Gradients ignore rounding, and
    are zero where a value is clipped (straight-through, as torch's fake quantisation). In fp16 weights and every operator's
    result are rounded to half precision. Among operators with several ONNX nodes, only SiLU is rounded between the nodes.

    Args:
        precision: ``fp32``, ``fp16`` or ``int8`` by processor.
        images: Batches of the network's input, which determine the ranges.
    """

    scales: torch.Tensor
    zeros: torch.Tensor

    def __init__(self, model: BranchedModel, precision: Mapping[str, str], images: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self._branches = _rounded_branches(model, precision)
        self._segments = {part.name: part for part in model.design.segments}
        self._reads = {name: subgraph_of(model.graph, name).input.name for name in self._branches}
        training = model.training
        ranges = _find_ranges(model, [name for name, branch in self._branches.items() if branch.precision == "int8"], images)
        self._at = {(name, tensor): i for i, (name, tensor) in enumerate((n, t) for n, names in ranges.items() for t in names)}
        quants = [quant for by_name in ranges.values() for quant in by_name.values()]
        device = next(model.parameters()).device
        self.register_buffer("scales", torch.tensor([scale for scale, _ in quants], dtype=torch.float32, device=device))
        self.register_buffer("zeros", torch.tensor([zero for _, zero in quants], dtype=torch.int32, device=device))
        self.train(training)

    @property
    def ranges(self) -> Ranges:
        """Scale and zero point of every int8 tensor, by subgraph and by the tensor's name in the bundle."""
        scales, zeros = self.scales.tolist(), self.zeros.tolist()
        ranges_by_branch: Ranges = {}
        for (name, tensor), i in self._at.items():
            ranges_by_branch.setdefault(name, {})[tensor] = (scales[i], zeros[i])
        return ranges_by_branch

    def train(self, mode: bool = True) -> "RoundedModel":
        """Set the mode; batch norms keep their statistics in both modes."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all segments, in float32 between roundings."""
        for name in self._segments:
            x = self.segment(name, x)
        return x

    def segment(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return the output of one segment for its input."""
        part = self._segments[name]
        with torch.autocast(x.device.type, enabled=False):
            outputs = [self.branch(f"{name}.{processor}", x.float()) for processor in part.names]
            joined: torch.Tensor = outputs[0] if len(outputs) == 1 else self.model.segment(name).join(*outputs)
        return joined

    def branch(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return the rounded output of one subgraph's branch for its input."""

        def rounded(tensor: str, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            i = self._at.get((name, tensor))
            if i is None:
                return value, None
            return torch.fake_quantize_per_tensor_affine(value, self.scales[i], self.zeros[i], *INT8_RANGE), self.scales[i]

        rounded_branch = self._branches[name]
        return rounded_branch.run(x, self._reads[name], _to_half if rounded_branch.precision == "fp16" else rounded)


def _rounded_branches(model: BranchedModel, precision: Mapping[str, str]) -> dict[str, "_RoundedBranch"]:
    """Return the branches by subgraph; refuse branches whose rounding this module does not model."""
    branches = {name: _RoundedBranch(branch, precision[processor], _prefix(name)) for name, branch, processor in _branches(model)}
    joins = {part.name: part.join for part in model.design.segments if not part.whole}
    for name, rounded_branch in branches.items():
        join = joins.get(name.partition(".")[0])
        if join is not None and join_of(join).exact:
            raise StretchError(
                f"branch `{name}` computes a part of its segment, and parts are rounded as the whole segment is, which training does not do",
                "train it without [rounding]: it computes what the original computes",
            )
        if rounded_branch.precision == "int8" and any(PART in op.tags for op in subgraph_of(model.graph, name).ops):
            raise StretchError(
                f"branch `{name}` computes grouped convolutions in parts with scales of their own, which training does not round",
                "set the precision of its processor to fp32 in [rounding]",
            )
        for layer, module in rounded_branch.branch.named_children() if rounded_branch.precision != "fp32" else ():
            if next(module.parameters(), None) is not None and not isinstance(module, _ROUNDED_LAYERS):
                raise StretchError(
                    f"`{layer}` of branch `{name}` is a {type(module).__name__}, whose weights training does not round",
                    "set the precision of its processor to fp32 in [rounding]",
                )
    return branches


#: Layers whose weights are rounded, and batch norms, which are folded into them.
_ROUNDED_LAYERS = (nn.Conv2d, nn.Linear, nn.modules.batchnorm._BatchNorm)


class _RoundedBranch:
    """One branch, computed with rounding."""

    def __init__(self, branch: Branch, precision: str, prefix: str) -> None:
        self.branch, self.precision, self.prefix = branch, precision, prefix
        readers: dict[str, list[str]] = {}
        for name, inputs, _ in branch.steps:
            for read in inputs:
                readers.setdefault(read, []).append(name)
        modules = dict(branch.named_children())
        #: Batch norm folded into each layer: the only reader of the layer's output.
        self.folded: dict[str, nn.modules.batchnorm._BatchNorm] = {}
        for name, module in modules.items():
            after = modules.get(readers[name][0]) if len(readers.get(name, ())) == 1 and name not in branch.results else None
            if isinstance(module, nn.Conv2d | nn.Linear) and isinstance(after, nn.modules.batchnorm._BatchNorm):
                self.folded[name] = after
        self._norms = {readers[name][0] for name in self.folded}

    def run(self, x: torch.Tensor, tensor: str, rounded: Rounding) -> torch.Tensor:
        """Return the output of the branch."""
        if self.precision == "fp32":
            whole: torch.Tensor = self.branch(x)
            return whole
        source = self.branch.sources[0]
        value, scale = rounded(tensor, x)
        values, scales = {source: value}, {source: scale}
        for name, inputs, done in self.branch.steps:
            if name in self._norms:
                value = values[inputs[0]]
            else:
                value = self._run_operator(name, [values[read] for read in inputs], scales[inputs[0]], rounded)
            # a tensor that is not rounded again keeps the scale of its input
            scale = scales[inputs[0]]
            if name not in self.folded:
                value, learned_scale = rounded(self.prefix + name, value)
                scale = scale if learned_scale is None else learned_scale
            values[name], scales[name] = value, scale
            for old in done:
                del values[old]
        return values[self.branch.results[0]]

    def _run_operator(self, name: str, inputs: list[torch.Tensor], scale: torch.Tensor | None, rounded: Rounding) -> torch.Tensor:
        """Return the output of an operator; `scale` is the scale of its first input."""
        module = self.branch.get_submodule(name)
        if isinstance(module, nn.SiLU):
            # SiLU is two nodes in the file, and both round
            return inputs[0] * rounded(f"{self.prefix}{name}.sigmoid", torch.sigmoid(inputs[0]))[0]
        if not isinstance(module, nn.Conv2d | nn.Linear):
            output: torch.Tensor = module(*inputs)
            return output
        weight, bias = module.weight, module.bias
        norm = self.folded.get(name)
        if norm is not None:
            mean, variance = statistics_of(norm)
            factor = torch.rsqrt(variance + norm.eps) * (1 if norm.weight is None else norm.weight)
            offset = (0 if norm.bias is None else norm.bias) - factor * mean
            weight = weight * factor.reshape(-1, *[1] * (weight.dim() - 1))
            bias = offset if bias is None else bias * factor + offset
        if self.precision == "fp16":
            weight, bias = _half(weight), None if bias is None else _half(bias)
        else:
            weight, bias = _per_channel(weight, bias, scale)
        output = F.linear(inputs[0], weight, bias) if isinstance(module, nn.Linear) else module._conv_forward(inputs[0], weight, bias)
        return output


def _half(value: torch.Tensor) -> torch.Tensor:
    """Return the nearest number in half precision; its gradient equals the gradient of `value`."""
    clamped = value.clamp(-MAX_FP16, MAX_FP16)
    return clamped + (clamped.detach().half().float() - clamped.detach())


def _to_half(tensor: str, value: torch.Tensor) -> tuple[torch.Tensor, None]:
    """Return a tensor in half precision, without a scale."""
    return _half(value), None


def _per_channel(
    weight: torch.Tensor, bias: torch.Tensor | None, arriving: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a layer's weights and bias rounded to int8 and int32; their gradients equal the gradients of `weight` and `bias`.

    Weights become the nearest of 255 numbers around zero, whose step follows the largest weight of each output channel; biases become
    integer multiples of this step times the scale of the input, so that they can be added to integer sums.
    """
    with torch.no_grad():
        scale = weight.abs().flatten(1).amax(1).clamp_min(MIN_RANGE) / WEIGHT_LEVELS
        channel_scale = scale.reshape(-1, *[1] * (weight.dim() - 1))
        nearest = (weight / channel_scale).round().clamp(-WEIGHT_LEVELS, WEIGHT_LEVELS) * channel_scale
        whole = None if bias is None or arriving is None else (bias / (scale * arriving)).round() * (scale * arriving)
    rounded = weight + (nearest - weight.detach())
    return rounded, bias if bias is None or whole is None else bias + (whole - bias.detach())


def _branches(model: BranchedModel) -> Iterator[tuple[str, Branch, str]]:
    """Yield the subgraph, module and processor of every branch."""
    for part in model.design.segments:
        for name, scale in zip(part.names, part.branches, strict=True):
            yield f"{part.name}.{name}", model.branch(part.name, name), scale.processor


def _prefix(subgraph: str) -> str:
    """Return the prefix of a subgraph's operator names in the bundle."""
    segment, _, name = subgraph.partition(".")
    return f"{segment}_{safe_name(name)}_"


@torch.no_grad()
def _find_ranges(model: BranchedModel, subgraphs: Sequence[str], images: Sequence[torch.Tensor]) -> Ranges:
    """Return the scales and zero points that the exporter's quantiser determines for inputs and operators' results."""
    reads: dict[str, list[Any]] = {name: [] for name in subgraphs}
    training = model.training
    handles = []
    for name in subgraphs:
        segment, _, branch_name = name.partition(".")

        def keep(_: nn.Module, arriving: tuple[torch.Tensor, ...], name: str = name) -> None:
            reads[name] += [(image[None].float().cpu().numpy(),) for image in arriving[0]]

        handles.append(model.branch(segment, branch_name).register_forward_pre_hook(keep))
    try:
        model.eval()
        for batch in images:
            model(batch)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    weights = to_numpy(op_weights(model))
    ranges: Ranges = {}
    for name in subgraphs:
        piece = subgraph_of(model.graph, name)
        quantised = quantise(to_onnx(piece, weights), reads[name])
        ranges[name] = {
            tensor: (float(scale), int(zero))
            for tensor, (scale, zero) in scales_of(quantised).items()
            if tensor.partition(".")[0] in piece.by_name
        }
    return ranges
