"""Schema of a bundle's `bundle.json`: what `stretch` writes and `scheduler` reads."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from predictors.devices import Precision
from predictors.errors import StretchError
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.preprocessing import Preprocessing

SCHEMA = 2

#: Predicted times and energies are at most this: sums of them stay finite, and fit a timeline in nanoseconds.
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Core = Annotated[int, msgspec.Meta(ge=0, le=1023)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unknown keys are refused: a bundle is untrusted."""


class Tensor(_Part, frozen=True):
    """A tensor that crosses subgraphs.

    Args:
        name: Unique in the bundle.
        shape: Batch first.
        producer: Subgraph or join that writes it; ``input`` for an input of the model.
        consumers: Subgraphs and joins that read it; ``output`` if it is a result.
        dtype: Element type.
        layout: Axis order; ``plain`` for what is neither images nor vectors, such as tokens.
        scale: Quantisation scale, or None.
        zero_point: Quantisation zero point, or None.
    """

    name: str
    shape: tuple[int, ...]
    producer: str
    consumers: tuple[str, ...]
    dtype: Literal["float32", "float16", "int8", "uint8"] = "float32"
    layout: Literal["NCHW", "NHWC", "PHWC4", "NC", "plain"] = "NCHW"
    scale: float | None = None
    zero_point: int | None = None


class Alternative(_Part, frozen=True):
    """A subgraph on one of the device's processors.

    Args:
        ms: Predicted time, without communication.
        mj: Predicted energy of the processor, mJ; None if the profile states no power.
    """

    ms: _Amount
    mj: _Amount | None = None


class SubgraphEntry(_Part, frozen=True):
    """A piece that one processor runs without waiting for another.

    Args:
        name: Unique, such as ``s1.cpu``.
        segment: Segment it belongs to.
        processor: Processor of the device profile it was planned for.
        file: ONNX file, relative to the bundle.
        inputs: Tensors it reads, at least one.
        outputs: Tensors it writes, at least one.
        macs: Multiply-accumulates.
        rows: Of tensors of which it does not read all rows: the first one, and the one behind the last.
        precision: Precision of the file.
        planned_precision: Precision the plan assumed on the device.
        predicted_ms: Predicted time on the device, alone and without communication.
        contention: Predicted factor on that while other branches of its segment compute.
        alternatives: What it would take on each processor of the plan.
    """

    name: str
    segment: str
    processor: str
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    macs: _Count
    rows: dict[str, tuple[_Count, _Count]] = {}
    precision: Precision = "fp32"
    planned_precision: Precision = "fp32"
    predicted_ms: _Amount | None = None
    contention: Annotated[float, msgspec.Meta(ge=1, le=1e3)] = 1.0
    alternatives: dict[str, Alternative] = {}

    @property
    def input(self) -> str:
        """The one tensor it reads, for those who need it to be one.

        Raises:
            StretchError: If it reads several.
        """
        return _only(self.inputs, f"subgraph `{self.name}` reads")

    @property
    def output(self) -> str:
        """The one tensor it writes, for those who need it to be one.

        Raises:
            StretchError: If it writes several.
        """
        return _only(self.outputs, f"subgraph `{self.name}` writes")


class JoinEntry(_Part, frozen=True):
    """A meeting point of two or more branches.

    Args:
        name: Unique, such as ``s1.join``.
        segment: Segment whose branches meet.
        kind: One of `predictors.join.meetings`, which the bundle's check sees to.
            ``concat``: inputs side by side along channels, in order;
            ``sum``: inputs added. (A ``project`` join is a ``concat`` here: its
            1×1 convolutions belong to the branches.)
        inputs: Branch output tensors, in order.
        output: Joined tensor.
        processor: Processor that waits and joins (the CPU of the paper's Algorithm 1).
    """

    name: str
    segment: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    processor: str = "cpu"


class FileEntry(_Part, frozen=True):
    """Size and SHA-256 of one file of the bundle."""

    bytes: _Count
    sha256: str


class ModelInfo(_Part, frozen=True):
    """The branched model and its original in numbers (batch 1).

    Args:
        name: Of the model.
        input_shape: Of its first input.
        output_shape: Of its first output.
        macs: Multiply-accumulates.
        params: Parameters.
        original_macs: Multiply-accumulates of the original.
        original_params: Parameters of the original.
        preprocessing: What a picture goes through before the model reads it; None if that is not known.
    """

    name: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    macs: _Count
    params: _Count
    original_macs: _Count
    original_params: _Count
    preprocessing: Preprocessing | None = None


class WeightsInfo(_Part, frozen=True):
    """Where the weights came from.

    Args:
        source: ``default`` (pretrained), ``random``, ``file``, ``given`` or ``trained`` (after it was branched).
        detail: Which file or which weights entry.
    """

    source: str
    detail: str = ""


class Manifest(_Part, frozen=True):
    """`bundle.json`.

    Args:
        schema: Version of this schema.
        version: nn-stretch that wrote the bundle.
        model: The model in numbers.
        device: Profile the design was planned for.
        calibrated: Whether that profile was fitted to measurements.
        weights: Where the weights came from.
        design: The `BranchDesign` as JSON.
        inputs: Names of the model's input tensors, at least one.
        outputs: Names of the model's output tensors, at least one.
        tensors: Tensors that cross subgraphs.
        subgraphs: In topological order.
        joins: In topological order.
        whole: ONNX of the whole branched model.
        controls: ONNX of the sequential controls, by name (``original``, ``sequential_same_macs``).
        control_macs: Multiply-accumulates of each control.
        predicted: The planner's figures (`predicted` of the command line's JSON).
        recommended: What the planner recommends to run.
        checks: Results of the numeric checks at export.
        files: Every other file of the bundle.
        contexts: Files with code for the DSP of named chips, by chip and subgraph.
        little_cores: The device's cores for threads that only wait for another processor.
        tflite: TFLite file with a signature for each subgraph and join, if there is one.
        aot: Copies of that file whose int8 signatures of the DSP are code for named chips, by chip.
        agreement: With the original on images, as the bundle was made; None where that was not measured.
        results: What the outputs are called for those who run the model, in their order, such as the keys of what the original
            returns; empty where they are called like their tensors.
        calibrated_on: Fingerprints of the images that weights were fitted to (`fingerprint`), where there were any.
    """

    schema: int
    version: str
    model: ModelInfo
    device: str
    calibrated: bool
    weights: WeightsInfo
    design: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    subgraphs: tuple[SubgraphEntry, ...]
    joins: tuple[JoinEntry, ...]
    whole: str
    controls: dict[str, str]
    control_macs: dict[str, _Count]
    predicted: dict[str, Any]
    recommended: str
    checks: dict[str, Any]
    files: dict[str, FileEntry]
    contexts: dict[str, dict[str, str]] = {}
    little_cores: tuple[_Core, ...] = ()
    tflite: str | None = None
    aot: dict[str, str] = {}
    agreement: Agreement | None = None
    results: tuple[str, ...] = ()
    calibrated_on: tuple[str, ...] = ()

    def named(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs among some tensors by name, as those who run the model get them."""
        return {result: tensors[name] for name, result in zip(self.outputs, self.results or self.outputs, strict=True)}

    @property
    def input(self) -> str:
        """The model's one input, for those who need it to be one.

        Raises:
            StretchError: If it has several.
        """
        return _only(self.inputs, "the model reads")

    @property
    def output(self) -> str:
        """The model's one output, for those who need it to be one.

        Raises:
            StretchError: If it has several.
        """
        return _only(self.outputs, "the model writes")


def _only(names: tuple[str, ...], what: str) -> str:
    if len(names) != 1:
        raise StretchError(
            f"{what} {len(names)} tensors, and only one is supported here", "`stretch run` and `stretch verify` take several"
        )
    return names[0]
