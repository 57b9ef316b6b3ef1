"""Schema of a bundle's `bundle.json`, which `stretch` writes and `scheduler` reads."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from predictors.devices import Precision
from predictors.errors import StretchError
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.preprocessing import Preprocessing

SCHEMA = 2

#: Maximum predicted time or energy: sums stay finite, and fit a timeline in ns.
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Core = Annotated[int, msgspec.Meta(ge=0, le=1023)]


class _ManifestStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the manifest's structures; unknown keys are refused, because a bundle is untrusted."""


class Tensor(_ManifestStruct, frozen=True):
    """A tensor between subgraphs."""

    name: str  # Unique in the bundle.
    shape: tuple[int, ...]  # Batch first.
    producer: str  # Subgraph or join that writes the tensor; ``input`` for an input of the model.
    consumers: tuple[str, ...]  # Subgraphs and joins that read the tensor; ``output`` for an output of the model.
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
    segment: str  # Segment of the subgraph.
    processor: str  # Processor of the device profile for which the subgraph was planned.
    file: str  # ONNX file, relative to the bundle.
    inputs: tuple[str, ...]  # Tensors read, at least one.
    outputs: tuple[str, ...]  # Tensors written, at least one.
    macs: _Count  # Multiply-accumulates.
    #: First row and end of the rows read, for tensors that are not read in full.
    rows: dict[str, tuple[_Count, _Count]] = {}
    precision: Precision = "fp32"  # Precision of the file.
    planned_precision: Precision = "fp32"  # Precision that the plan assumed on the device.
    predicted_ms: _Amount | None = None  # Predicted time on the device, alone and without communication.
    #: Shares of the predicted time that contention changes: of kernels that multiply, and of kernels that move memory.
    contended_shares: tuple[_Share, _Share] = (0.0, 0.0)
    alternatives: dict[str, Alternative] = {}  # Time on each processor of the plan.

    @property
    def input(self) -> str:
        """The only tensor read, for callers that need exactly one."""
        return _only(self.inputs, f"subgraph `{self.name}` reads")

    @property
    def output(self) -> str:
        """The only tensor written, for callers that need exactly one."""
        return _only(self.outputs, f"subgraph `{self.name}` writes")


class JoinEntry(_ManifestStruct, frozen=True):
    """A meeting point of two or more branches."""

    name: str  # Unique, such as ``s1.join``.
    segment: str  # Segment whose branches meet.
    #: Name in `predictors.join_rules.meetings`, which the bundle's check requires. ``concat``: inputs concatenated along channels;
    #: ``sum``: inputs added. (A ``project`` join is a ``concat`` here: its 1×1 convolutions belong to the branches.)
    kind: str
    inputs: tuple[str, ...]  # Branch output tensors, in order.
    output: str  # Joined tensor.
    processor: str = "cpu"  # Processor that waits and joins (the CPU of the paper's Algorithm 1).

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensor written, in the form of a subgraph's outputs."""
        return (self.output,)


class FileEntry(_ManifestStruct, frozen=True):
    """Size and SHA-256 of one file of the bundle."""

    bytes: _Count
    sha256: str


class ModelInfo(_ManifestStruct, frozen=True):
    """Size of the branched model and of its original (batch 1)."""

    name: str  # Name of the model.
    input_shape: tuple[int, ...]  # Shape of its first input.
    output_shape: tuple[int, ...]  # Shape of its first output.
    macs: _Count  # Multiply-accumulates.
    params: _Count  # Parameters.
    original_macs: _Count  # Multiply-accumulates of the original.
    original_params: _Count  # Parameters of the original.
    preprocessing: Preprocessing | None = None  # Preparation of a picture for the model; None if unknown.


class SourceTensor(_ManifestStruct, frozen=True):
    """An input or output of the user's own file, and the matching tensor of the bundle."""

    name: str  # Name in the file; for a TFLite file the number of the tensor.
    tensor: str  # Tensor of the bundle; empty for an input that the network does not read.
    shape: tuple[int, ...]  # Shape in the file.
    dtype: str = "float32"  # Element type in the file.
    order: tuple[int, ...] = ()  # The bundle's axis for each axis of the file; empty if the order is the same.
    scale: float | None = None  # Scale of quantised reals: a real is (number - zero point) * scale.
    zero_point: int = 0


class SourceFile(_ManifestStruct, frozen=True):
    """The file that the original was read from."""

    inputs: tuple[SourceTensor, ...]  # All inputs of the file, in the file's order.
    outputs: tuple[SourceTensor, ...]  # All outputs of the file, in the file's order.
    precision: Precision = "fp32"  # Lowest precision that the file computes in.
    file: str = ""  # Path of the file in the bundle.
    exact: bool = False  # Whether the bundle's outputs must equal those of the file.


class WeightsInfo(_ManifestStruct, frozen=True):
    """Source of the weights."""

    source: str  # ``default`` (pretrained), ``random``, ``file``, ``given`` or ``trained`` (after branching).
    detail: str = ""  # File or weights entry.


class Manifest(_ManifestStruct, frozen=True):
    """Contents of `bundle.json`."""

    schema: int  # Version of this schema.
    version: str  # Version of nn-stretch that wrote the bundle.
    model: ModelInfo  # Size of the model.
    device: str  # Profile for which the design was planned.
    calibrated: bool  # Whether the profile was fitted to measurements.
    weights: WeightsInfo  # Source of the weights.
    design: dict[str, Any]  # The `BranchDesign` as JSON.
    inputs: tuple[str, ...]  # Names of the model's input tensors, at least one.
    outputs: tuple[str, ...]  # Names of the model's output tensors, at least one.
    tensors: tuple[Tensor, ...]  # Tensors between subgraphs.
    subgraphs: tuple[SubgraphEntry, ...]  # In topological order.
    joins: tuple[JoinEntry, ...]  # In topological order.
    whole: str  # ONNX file of the whole branched model.
    controls: dict[str, str]  # ONNX files of the sequential controls, by name (``original``, ``sequential_same_macs``).
    control_macs: dict[str, _Count]  # Multiply-accumulates of each control.
    predicted: dict[str, Any]  # The planner's figures (`predicted` in the JSON of the command line).
    recommended: str  # The planner's recommendation.
    checks: dict[str, Any]  # Results of the numeric checks at export.
    files: dict[str, FileEntry]  # Every other file of the bundle.
    contexts: dict[str, dict[str, str]] = {}  # Files with code for the DSP of named chips, by chip and subgraph.
    little_cores: tuple[_Core, ...] = ()  # The device's cores for threads that only wait for another processor.
    delegates: dict[str, str] = {}  # Delegates that measured the processors, by processor, if the profile names them.
    tflite: str | None = None  # TFLite file with a signature for each subgraph and join, or None.
    aot: dict[str, str] = {}  # Copies of the TFLite file in which the DSP's int8 signatures are code for named chips, by chip.
    agreement: Agreement | None = None  # Agreement with the original on images, measured when the bundle was made; None if not measured.
    #: Public names of the outputs, in order, such as the keys of the original's result; empty if the outputs have the names of their
    #: tensors.
    results: tuple[str, ...] = ()
    own: SourceFile | None = None  # The user's own file, if the bundle contains it.
    int8_controls: dict[str, str] = {}  # The controls in int8, by name, for their times, if subgraphs are in int8.
    calibrated_on: tuple[str, ...] = ()  # Fingerprints of the images that weights were fitted to (`fingerprint`), if any.

    def name_outputs(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs among `tensors` by their public names."""
        return {result: tensors[name] for name, result in zip(self.outputs, self.results or self.outputs, strict=True)}

    @property
    def input(self) -> str:
        """The model's only input, for callers that need exactly one."""
        return _only(self.inputs, "the model reads")

    @property
    def output(self) -> str:
        """The model's only output, for callers that need exactly one."""
        return _only(self.outputs, "the model writes")


def _only(names: tuple[str, ...], noun: str) -> str:
    if len(names) != 1:
        raise StretchError(
            f"{noun} {len(names)} tensors, and only one is supported here", "`stretch run` and `stretch verify` take several"
        )
    return names[0]


class TflitePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description inside a TFLite file of its bundle."""

    schema: int  # Version of this description.
    version: str  # Version of nn-stretch that wrote the file.
    model: str  # Name of the model.
    device: str  # Profile for which the design was planned.
    inputs: tuple[str, ...]  # Names of the model's input tensors.
    outputs: tuple[str, ...]  # Names of the model's output tensors.
    tensors: tuple[Tensor, ...]  # Tensors between subgraphs, in NHWC.
    subgraphs: tuple[SubgraphEntry, ...]  # In topological order; the file has a signature with each name.
    joins: tuple[JoinEntry, ...]  # In topological order; the file has a signature with each name.
