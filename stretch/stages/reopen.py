"""Restore networks as torch modules from the files of a bundle or a run, because the model's source may be unavailable."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import onnx
import torch
from torch import nn

from predictors.errors import StretchError
from predictors.graph import OpGraph
from scheduler.bundle.load import Bundle
from scheduler.formats.onnx import OnnxFile
from stretch.export.checks import check_export
from stretch.export.lowering import subgraph_names
from stretch.export.onnx import NODELESS_PROPERTY, read_property, weights_of
from stretch.network.capture import Captured
from stretch.planning.design.branch_design import BranchDesign
from stretch.transform import BranchedModel, build
from stretch.transform.build import load_weights
from stretch.transform.calibrate import undivided_design
from stretch.transform.model import weights_of_wholes

Weights = dict[str, dict[str, torch.Tensor]]

#: Maximum depth, width or row number of a network; products of such numbers do not overflow.
MAX_NUMBER = 1 << 31

_WRITE_AGAIN_HINT = "write the bundle again with `stretch branch`"


def load_bundle_model(bundle: Bundle) -> tuple[Captured, BranchedModel]:
    """Rebuild the original and the branched network of an fp32 bundle, in evaluation mode, and check them against its files."""
    manifest = bundle.manifest
    lowered = next((sub for sub in manifest.subgraphs if sub.precision != "fp32"), None)
    if lowered is not None:
        raise StretchError(
            f"subgraph `{lowered.name}` of {bundle.path} is in {lowered.precision}, and weights can be changed in fp32 alone",
            "give the bundle that it was exported from, and export it again afterwards",
        )
    if "original" not in manifest.controls:
        raise StretchError(
            f"{bundle.path} was written without controls, so it does not hold the original",
            "write it again with controls, `stretch branch`",
        )
    file = _open_file(bundle.file(manifest.controls["original"]))
    graph = file.graph
    design = _design(bundle, graph, read_property(file.proto, NODELESS_PROPERTY, dict[str, str], file.path, missing="{}"))
    captured = restore(graph, _tensors(file), design)
    model = BranchedModel(graph, design)
    if set(subgraph_names(model.graph)) != {sub.name for sub in manifest.subgraphs}:
        raise StretchError(f"the design of {bundle.path} has other branches than the bundle has subgraphs", _WRITE_AGAIN_HINT)
    _fill(model, weights_of_wholes(model.graph, _tensors(_open_file(bundle.file(manifest.whole)))))
    # raises an error if a file's results differ
    controls = {"original": manifest.controls["original"]}
    check_export(bundle.file("."), msgspec.structs.replace(manifest, controls=controls), captured, model.eval(), {})
    return captured, model


def restore(graph: OpGraph, weights: Weights, design: BranchDesign | None = None) -> Captured:
    """Return a captured network with a module that is rebuilt from operators and weights, in the segments of a design."""
    bare = Captured(graph, weights, nn.Identity())
    return Captured(graph, weights, build(bare, undivided_design(bare, design)))


def _open_file(path: Path) -> OnnxFile:
    """Return a file with its external weights, which the bundle's check restricts to the bundle's folder."""
    return OnnxFile(path, onnx.load(str(path)))


def _tensors(file: OnnxFile) -> Weights:
    return {op: {key: torch.from_numpy(value.copy()) for key, value in arrays.items()} for op, arrays in weights_of(file).items()}


def _design(bundle: Bundle, graph: OpGraph, passed_on: Mapping[str, str]) -> BranchDesign:
    """Return the bundle's design with the tensor names of its files, which leave out operators that compute nothing."""
    try:
        design = msgspec.convert(bundle.manifest.design, BranchDesign)
    except (msgspec.ValidationError, RecursionError) as error:
        raise StretchError(f"{bundle.path} states no design: {error}", _WRITE_AGAIN_HINT) from error
    if (largest := _largest_number(bundle.manifest.design)) > MAX_NUMBER:
        raise StretchError(f"{bundle.path} states a design with a size of {largest.bit_length()} bits", _WRITE_AGAIN_HINT)
    parts = []
    for part in design.segments:
        # the name becomes a module attribute, so it must not hide another attribute
        if not part.name.isidentifier() or hasattr(BranchedModel, part.name):
            raise StretchError(f"{bundle.path} states a design with a segment called `{part.name[:60]}`", _WRITE_AGAIN_HINT)
        if not part.branches or min(min(branch.width, branch.align) for branch in part.branches) < 1:
            raise StretchError(f"segment `{part.name}` of {bundle.path} has a branch of no width", _WRITE_AGAIN_HINT)
        ends = {what: passed_on.get(getattr(part, what), getattr(part, what)) for what in ("start", "end")}
        for name in ends.values():
            if name not in graph.by_name:
                raise StretchError(
                    f"segment `{part.name}` of {bundle.path} ends at `{name}`, which the original does not have", _WRITE_AGAIN_HINT
                )
        parts.append(replace(part, **ends))
    return replace(design, segments=tuple(parts))


def _largest_number(stated: object) -> int:
    """Return the largest absolute integer in nested data; 0 without integers."""
    if isinstance(stated, Mapping | list | tuple):
        return max((_largest_number(element) for element in (stated.values() if isinstance(stated, Mapping) else stated)), default=0)
    return abs(stated) if isinstance(stated, int) else 0


@torch.no_grad()
def _fill(model: BranchedModel, weights: Weights) -> None:
    """Load the weights of the whole file into a branched network; branches of channels share slices of them."""
    for name, module in model.named_modules():
        parameters = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        values = {key: value for key, value in weights.get(name.replace(".", "_"), {}).items() if key in parameters}
        for key, value in values.items():
            if value.numel() != parameters[key].numel():
                raise StretchError(
                    f"`{name}` has {value.numel()} numbers of its {key} in the bundle's files, its design {parameters[key].numel()}",
                    _WRITE_AGAIN_HINT,
                )
        load_weights(module, values)
