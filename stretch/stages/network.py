"""First stage: a model by name, or as a module, what it computes as data, and what can be done to its stages."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import msgspec
from torch import nn

from predictors.errors import StretchError, UsageError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from stretch.capture import Captured, capture
from stretch.capture.inputs import InputShapes
from stretch.capture.trace import capture_traced
from stretch.models.load import LoadedModel, is_file, load_model
from stretch.planning.design.division import divisions
from stretch.planning.network.segments import Segment, backbone_of, cut_points, divide, split_segments

#: Context manager of a named phase, which reports and times it.
Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class CapturedNetwork:
    """The original network."""

    loaded: LoadedModel  # As a module, with the source of its weights.
    captured: Captured  # As data, with its weights.

    @property
    def graph(self) -> OpGraph:
        """Its operators."""
        return self.captured.graph


def read_network(
    model: str | Callable[[], LoadedModel],
    shape: InputShapes | Callable[[LoadedModel], Sequence[int]] | None = None,
    *,
    weights: str = "default",
    seed: int = 0,
    trust_code: bool = False,
    portable: bool = False,
    settled: bool = True,
    phase: Phase = lambda name: nullcontext(),
) -> CapturedNetwork:
    """Load a model and capture it.

    Args:
        shape: Of the input, batch first, or of several inputs, or what tells it of the loaded model; the model's usual one if None.
        weights: ``default``, ``none`` or a file.
        settled: As of `load_model`; where only the graph is read, it may be left out.
    """
    with phase("load"):
        input_shape = None if callable(shape) else shape
        options = {"weights": weights, "seed": seed, "trust_code": trust_code, "input_shape": input_shape, "settled": settled}
        loaded = load_model(model, **options) if isinstance(model, str) else model()
    check_numbers(loaded.module, loaded.name)
    traced_shape = shape(loaded) if callable(shape) else _asked(model, shape)
    name = loaded.name.rpartition("/")[2] if portable and is_file(loaded.name) else loaded.name
    with phase("capture"):
        return CapturedNetwork(loaded, capture(loaded.module, loaded.input_shape if traced_shape is None else traced_shape, name))


def _asked(model: object, shape: InputShapes | None) -> InputShapes | None:
    """The shapes that are asked for; None of a file, which has been loaded with them and has names of its own for its inputs."""
    return None if isinstance(model, str) and is_file(model) else shape


def check_numbers(module: nn.Module, name: str) -> None:
    """Refuse weights and statistics that are not finite: whatever is computed with them is nothing."""
    for kind, tensors in (("weight", module.named_parameters()), ("statistic or constant", module.named_buffers())):
        for key, tensor in tensors:
            if not tensor.is_floating_point() or tensor.is_meta:
                continue
            # masks of attention are infinite on purpose
            bad = int((~tensor.isfinite() if kind == "weight" else tensor.isnan()).sum())
            if bad:
                raise StretchError(
                    f"the {kind} `{key}` of `{name}` has {bad} of {tensor.numel()} numbers that are not finite",
                    "use a checkpoint from before its training diverged",
                )


@dataclass(frozen=True)
class Readout:
    """What a prediction needs of a network."""

    name: str  # By which it was read.
    graph: OpGraph  # Its operators; some may be opaque.
    refusal: str | None = None  # Why tracing refused it, so that it is predicted from `torch.export`; None where it did not.


def read_graph(model: str, shape: InputShapes | None = None, *, weights: str = "none", trust_code: bool = False) -> Readout:
    """Load a model and capture what a prediction needs: every network that torch can export has a graph.

    Args:
        model: A name of `stretch list models`, Python code, a file; an ONNX file of any exporter, or an ncnn network, ``NAME.param``.
        shape: Of the input, batch first, or of several inputs; the model's usual one if None.
    """
    if model.endswith(".param"):
        from predictors.formats import read_ncnn

        return Readout(model, read_ncnn(model, shape))
    if model.endswith(".onnx"):
        from predictors.formats.onnx import read_onnx

        return Readout(model, read_onnx(model, shape))
    loaded = load_model(model, weights="none" if weights == "default" else weights, trust_code=trust_code, input_shape=shape, settled=False)
    requested = _asked(model, shape)
    input_shape = loaded.input_shape if requested is None else requested
    try:
        return Readout(model, capture_traced(loaded.module, input_shape, loaded.name).graph)
    except UsageError:
        raise
    except StretchError as error:
        # torch's exporter is slow to import
        from stretch.capture.exported import capture_exported

        return Readout(model, capture_exported(loaded.module, input_shape, loaded.name), error.message)


# What of a network can be scaled, what is divided exactly, and why not where neither is possible.

#: What a branch may have less of: blocks, channels of the backbone, heads of attention, hidden channels of a block.
Scaled = Literal["depth", "width", "heads", "hidden"]


class StageAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done to a stage."""

    name: str  # ``stem``, ``s1``, …, ``head``; of what lies beside the backbone ``side1``, …
    shape: tuple[int, ...]  # Of its output, of several outputs of the first.
    depth: int = 1  # Blocks.
    min_depth: int = 1  # Blocks that are never removed.
    heads: int = 0  # Most heads of its attentions; 0 where it has none.
    opaque: int  # Operators that only state their shape, which nothing scales or divides.
    scaled: list[Scaled] = []  # What a branch may have less of; nothing where the stage is not stretched.
    exact: list[str] = []  # What branches may divide in one part of it or more; where it is nothing the stage is placed as it is.
    why: str  # Why it is not stretched; empty where it is.


def abilities(graph: OpGraph) -> list[StageAbilities]:
    """What can be done to each stage of a network, and to what lies beside them where it has several inputs or outputs."""
    backbone, result = backbone_of(graph), []
    for stage in split_segments(backbone.graph):
        scaled, ops = _scaled(stage) if stage.branchable else [], stage.graph.ops
        parts = [part.graph for part in divide(backbone.graph, stage, frozenset(cut_points(backbone.graph)), False, True)]
        exact = [word for division in divisions().values() for word in sorted({word for part in parts for word in division.possible(part)})]
        result.append(
            StageAbilities(
                name=stage.name,
                shape=backbone.graph.by_name[stage.end].shape,
                depth=stage.depth,
                min_depth=stage.min_depth,
                heads=max((int(str(op.attrs["heads"])) for op in ops if op.kind == "attention"), default=0),
                opaque=sum(op.kind == "opaque" for op in ops),
                scaled=scaled,
                exact=exact,
                why="" if scaled else _why(stage),
            )
        )
    for side in backbone.sides:
        opaque, shape = sum(op.kind == "opaque" for op in side.ops), side.by_name[side.outputs[0]].shape
        result.append(StageAbilities(name=side.name, shape=shape, opaque=opaque, why="it lies beside the backbone and runs whole"))
    return result


def _scaled(stage: Segment) -> list[Scaled]:
    groups = stage.channels
    free = {group for group, units in groups.units.items() if units > 1} - groups.frozen - {groups.input_group}
    backbone = {group for group, _ in groups.pieces[stage.end]}
    heads = {group for op in stage.graph.ops if op.kind == "attention" for group, _ in groups.pieces[op.name]}
    scaled: list[Scaled] = []
    if stage.min_depth < stage.depth:
        scaled.append("depth")
    if not stage.fixed_width:
        scaled.append("width")
    if free & heads:
        scaled.append("heads")
    if free - heads - backbone:
        scaled.append("hidden")
    return scaled


def _why(stage: Segment) -> str:
    if stage.name == "head":
        return "the head stays whole"
    if stage.name == "stem":
        return "the stem stays whole where segments are stages"
    holding = next((op for op in stage.graph.ops if kind_of(op.kind).stated), None)
    if not stage.branchable:
        return f"`{stage.start}` or `{stage.end}` is no feature map{_by(holding)}"
    return f"its channels are held fast and no block may go{_by(holding)}"


def _by(op: Op | None) -> str:
    return "" if op is None else f", since `{op.name}` ({op.attrs.get('variant', op.kind)}) only states its shape"
