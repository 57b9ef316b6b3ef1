"""Schema of a bundle's `bundle.json`: what `stretch` writes and `scheduler` reads."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from predictors.devices import Precision
from predictors.errors import StretchError
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.preprocessing import Preprocessing

SCHEMA = 2

#: Maximum predicted time or energy: sums stay finite, and fit a timeline in nanoseconds.
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Core = Annotated[int, msgspec.Meta(ge=0, le=1023)]


class _ManifestStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the manifest's structures; unknown keys are refused, since a bundle is untrusted."""


class Tensor(_ManifestStruct, frozen=True):
    """A tensor that crosses subgraphs."""

    name: str  # Unique in the bundle.
    shape: tuple[int, ...]  # Batch first.
    producer: str  # Subgraph or join that writes it; ``input`` for an input of the model.
    consumers: tuple[str, ...]  # Subgraphs and joins that read it; ``output`` if it is a result.
    dtype: Literal["float32", "float16", "int8", "uint8"] = "float32"  # Element type.
    #: Axis order; ``plain`` for tensors that are neither images nor vectors, such as tokens.
    layout: Literal["NCHW", "NHWC", "PHWC4", "NC", "plain"] = "NCHW"
    scale: float | None = None  # Quantisation scale, or None.
    zero_point: int | None = None  # Quantisation zero point, or None.


class Alternative(_ManifestStruct, frozen=True):
    """A subgraph on one of the device's processors."""

    ms: _Amount  # Predicted time, without communication.
    mj: _Amount | None = None  # Predicted energy of the processor, mJ; None if the profile states no power.


class SubgraphEntry(_ManifestStruct, frozen=True):
    """A part of the network that one processor runs without waiting for another."""

    name: str  # Unique, such as ``s1.cpu``.
    segment: str  # Segment it belongs to.
    processor: str  # Processor of the device profile it was planned for.
    file: str  # ONNX file, relative to the bundle.
    inputs: tuple[str, ...]  # Tensors it reads, at least one.
    outputs: tuple[str, ...]  # Tensors it writes, at least one.
    macs: _Count  # Multiply-accumulates.
    #: First row and end of the rows that it reads, of tensors that it does not read whole.
    rows: dict[str, tuple[_Count, _Count]] = {}
    precision: Precision = "fp32"  # Precision of the file.
    planned_precision: Precision = "fp32"  # Precision the plan assumed on the device.
    predicted_ms: _Amount | None = None  # Predicted time on the device, alone and without communication.
    #: Shares of that time that other processors change while they compute: of kernels that multiply, and of kernels that move memory.
    contended_shares: tuple[_Share, _Share] = (0.0, 0.0)
    alternatives: dict[str, Alternative] = {}  # Its time on each processor of the plan.

    @property
    def input(self) -> str:
        """The one tensor it reads, for callers that need exactly one."""
        return _only(self.inputs, f"subgraph `{self.name}` reads")

    @property
    def output(self) -> str:
        """The one tensor it writes, for callers that need exactly one."""
        return _only(self.outputs, f"subgraph `{self.name}` writes")


class JoinEntry(_ManifestStruct, frozen=True):
    """A meeting point of two or more branches."""

    name: str  # Unique, such as ``s1.join``.
    segment: str  # Segment whose branches meet.
    #: Name in `predictors.join_rules.meetings`, which the bundle's check requires. ``concat``: inputs side by side along channels, in order;
    #: ``sum``: inputs added. (A ``project`` join is a ``concat`` here: its 1×1 convolutions belong to the branches.)
    kind: str
    inputs: tuple[str, ...]  # Branch output tensors, in order.
    output: str  # Joined tensor.
    processor: str = "cpu"  # Processor that waits and joins (the CPU of the paper's Algorithm 1).

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensor that it writes, as for a subgraph."""
        return (self.output,)


class FileEntry(_ManifestStruct, frozen=True):
    """Size and SHA-256 of one file of the bundle."""

    bytes: _Count
    sha256: str


class ModelInfo(_ManifestStruct, frozen=True):
    """The branched model and its original in numbers (batch 1)."""

    name: str  # Of the model.
    input_shape: tuple[int, ...]  # Of its first input.
    output_shape: tuple[int, ...]  # Of its first output.
    macs: _Count  # Multiply-accumulates.
    params: _Count  # Parameters.
    original_macs: _Count  # Multiply-accumulates of the original.
    original_params: _Count  # Parameters of the original.
    preprocessing: Preprocessing | None = None  # Preparation of a picture before the model reads it; None if that is not known.


class SourceTensor(_ManifestStruct, frozen=True):
    """An input or output of the user's own file, and the tensor of the bundle that it is."""

    name: str  # In the file; of a TFLite file the number of its tensor.
    tensor: str  # Of the bundle; empty for an input that the network does not read.
    shape: tuple[int, ...]  # In the file.
    dtype: str = "float32"  # Element type in the file.
    order: tuple[int, ...] = ()  # The bundle's axis for each axis of the file; empty where they are the same.
    scale: float | None = None  # Of rounded reals: a real is (number - zero point) * scale.
    zero_point: int = 0


class SourceFile(_ManifestStruct, frozen=True):
    """The file that the original was read from."""

    inputs: tuple[SourceTensor, ...]  # All inputs of the file, in its order.
    outputs: tuple[SourceTensor, ...]  # All outputs of the file, in its order.
    precision: Precision = "fp32"  # The least precise numbers that it computes with.
    file: str = ""  # Its path in the bundle.
    exact: bool = False  # Whether the bundle's outputs are to be those of the file.


class WeightsInfo(_ManifestStruct, frozen=True):
    """Where the weights came from."""

    source: str  # ``default`` (pretrained), ``random``, ``file``, ``given`` or ``trained`` (after it was branched).
    detail: str = ""  # Which file or which weights entry.


class Manifest(_ManifestStruct, frozen=True):
    """`bundle.json`."""

    schema: int  # Version of this schema.
    version: str  # nn-stretch that wrote the bundle.
    model: ModelInfo  # The model in numbers.
    device: str  # Profile the design was planned for.
    calibrated: bool  # Whether that profile was fitted to measurements.
    weights: WeightsInfo  # Where the weights came from.
    design: dict[str, Any]  # The `BranchDesign` as JSON.
    inputs: tuple[str, ...]  # Names of the model's input tensors, at least one.
    outputs: tuple[str, ...]  # Names of the model's output tensors, at least one.
    tensors: tuple[Tensor, ...]  # Tensors that cross subgraphs.
    subgraphs: tuple[SubgraphEntry, ...]  # In topological order.
    joins: tuple[JoinEntry, ...]  # In topological order.
    whole: str  # ONNX of the whole branched model.
    controls: dict[str, str]  # ONNX of the sequential controls, by name (``original``, ``sequential_same_macs``).
    control_macs: dict[str, _Count]  # Multiply-accumulates of each control.
    predicted: dict[str, Any]  # The planner's figures (`predicted` of the command line's JSON).
    recommended: str  # The planner's recommendation.
    checks: dict[str, Any]  # Results of the numeric checks at export.
    files: dict[str, FileEntry]  # Every other file of the bundle.
    contexts: dict[str, dict[str, str]] = {}  # Files with code for the DSP of named chips, by chip and subgraph.
    little_cores: tuple[_Core, ...] = ()  # The device's cores for threads that only wait for another processor.
    delegates: dict[str, str] = {}  # Delegates that the processors were measured with, by processor, where the profile names some.
    tflite: str | None = None  # TFLite file with a signature for each subgraph and join, if there is one.
    aot: dict[str, str] = {}  # Copies of that file whose int8 signatures of the DSP are code for named chips, by chip.
    agreement: Agreement | None = None  # With the original on images, as the bundle was made; None where that was not measured.
    #: Names of the outputs for those who run the model, in their order, such as the keys of the original's result; empty where
    #: they are called like their tensors.
    results: tuple[str, ...] = ()
    own: SourceFile | None = None  # The user's own file, if the original was read from one that the bundle holds.
    int8_controls: dict[str, str] = {}  # The controls in int8, by name, where subgraphs are in int8; for their times.
    calibrated_on: tuple[str, ...] = ()  # Fingerprints of the images that weights were fitted to (`fingerprint`), where there were any.

    def name_outputs(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs among some tensors by name, as those who run the model get them."""
        return {result: tensors[name] for name, result in zip(self.outputs, self.results or self.outputs, strict=True)}

    @property
    def input(self) -> str:
        """The model's one input, for callers that need exactly one."""
        return _only(self.inputs, "the model reads")

    @property
    def output(self) -> str:
        """The model's one output, for callers that need exactly one."""
        return _only(self.outputs, "the model writes")


def _only(names: tuple[str, ...], noun: str) -> str:
    if len(names) != 1:
        raise StretchError(
            f"{noun} {len(names)} tensors, and only one is supported here", "`stretch run` and `stretch verify` take several"
        )
    return names[0]


class TflitePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A TFLite file's description of the bundle that it runs."""

    schema: int  # Version of this description.
    version: str  # nn-stretch that wrote it.
    model: str  # Name of the model.
    device: str  # Profile that the design was planned for.
    inputs: tuple[str, ...]  # Names of the model's input tensors.
    outputs: tuple[str, ...]  # Names of the model's output tensors.
    tensors: tuple[Tensor, ...]  # Tensors that cross subgraphs, in NHWC.
    subgraphs: tuple[SubgraphEntry, ...]  # In topological order; each is a signature of its name.
    joins: tuple[JoinEntry, ...]  # In topological order; each is a signature of its name.
