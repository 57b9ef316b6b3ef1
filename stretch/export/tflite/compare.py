"""Comparison of each signature of a TFLite file with its ONNX file and with fp32."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from predictors.errors import InfeasibleError
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import SubgraphEntry
from scheduler.bundle.rows import read_by
from scheduler.delegates.base import Compiled
from scheduler.delegates.litert import LiteRtDelegate
from stretch.quantize.compare import Loss, least_snr_db, loss
from stretch.quantize.replay import Run, replay, runner, several

Array = NDArray[Any]

#: Minimum cosine of a signature with its ONNX file: in fp32, and in int8 or half precision.
MIN_COSINE, MIN_COSINE_ROUNDED = 0.99999, 0.999

#: Two roundings differ by as much as each loses, which in deep subgraphs is more than that. Such a signature
#: must be as close to fp32 as the ONNX file, within half a bit (in decibels).
MARGIN_DB = 3.0

#: Name of the model's output, which includes the errors of all signatures before it.
OUTPUT = "output"


@dataclass(frozen=True)
class Comparison:
    """Loss of every signature."""

    #: Against the ONNX file of the same subgraph on the same input, by signature, and of the ``output``. All losses are those of the
    #: worst image.
    losses: dict[str, Loss]
    fp32: dict[str, Loss]  # Against the whole model in fp32 on its tensors, by signature, and of the ``output``.
    onnx_fp32: dict[str, Loss]  # The same of the ONNX files.
    least: dict[str, float]  # Minimum cosine of each of `losses`.
    runtime: str  # LiteRT's package and version.

    def refuse(self) -> None:
        """Raise InfeasibleError if a signature differs from its ONNX file."""
        for name, least in self.least.items():
            lost = self.losses[name]
            as_near = least < MIN_COSINE and self.fp32[name].snr_db >= self.onnx_fp32[name].snr_db - MARGIN_DB
            if lost.exceeds(least) and not as_near:
                raise InfeasibleError(
                    f"signature `{name}` of the TFLite file has a cosine of {lost.cosine:.5f} and {lost.snr_db:.1f} dB with ONNX Runtime, "
                    f"at least {least} and {least_snr_db(least):.1f} dB are required",
                    "keep this model in ONNX, and please report it with the model's name",
                )

    def to_json(self) -> dict[str, Any]:
        """As recorded in the bundle."""

        def losses_of(name: str) -> dict[str, Any]:
            exact = {"fp32": self.fp32[name].to_json(), "onnx_fp32": self.onnx_fp32[name].to_json()}
            return self.losses[name].to_json() | {"min_cosine": self.least[name], **exact}

        return {
            "reference": "the same subgraph on ONNX Runtime, int8 computed as the real numbers it represents; fp32: the whole model's tensors",
            "runtime": self.runtime,
            "signatures": {name: losses_of(name) for name in self.losses if name != OUTPUT},
            "output": losses_of(OUTPUT),
        }


def compare(bundle: Bundle, images: Sequence[Array]) -> Comparison:
    """Compare every signature of a bundle's TFLite file with its ONNX file."""
    manifest = bundle.manifest
    steps = [*manifest.subgraphs, *manifest.joins]
    delegate = LiteRtDelegate()
    compiled = {step.name: delegate.compile_from(bundle, step.name) for step in steps}
    runs = {sub.name: _run(compiled[sub.name]) for sub in manifest.subgraphs}
    files = {sub.name: runner(str(bundle.file(sub.file))) for sub in manifest.subgraphs}
    whole = _whole(bundle)
    names = (*compiled, OUTPUT)
    lost: dict[str, dict[str, list[Loss]]] = {what: {name: [] for name in names} for what in ("onnx", "fp32", "onnx_fp32")}
    for image in images:
        through, rounded_there, exact = replay(manifest, runs, image), replay(manifest, files, image), whole(image)
        for what, expected in (("onnx", rounded_there), ("fp32", exact)):
            for sub in manifest.subgraphs:
                lost[what][sub.name].append(_lost(sub, expected, runs[sub.name]))
            for join in manifest.joins:
                joined = np.empty(expected[join.output].shape, np.float32)
                compiled[join.name].run([np.ascontiguousarray(expected[name]) for name in join.inputs], [joined])
                lost[what][join.name].append(loss([(expected[join.output], joined)]))
            lost[what][OUTPUT].append(loss([(expected[manifest.output], through[manifest.output])]))
        for sub in manifest.subgraphs:
            lost["onnx_fp32"][sub.name].append(_lost(sub, exact, files[sub.name]))
        for join in manifest.joins:
            lost["onnx_fp32"][join.name].append(loss([]))
        lost["onnx_fp32"][OUTPUT].append(loss([(exact[manifest.output], rounded_there[manifest.output])]))
    rounded = {sub.name for sub in manifest.subgraphs if sub.precision != "fp32"}
    least = {name: MIN_COSINE_ROUNDED if name in rounded or (rounded and name == OUTPUT) else MIN_COSINE for name in names}
    worst = {what: {name: _worst(values) for name, values in losses.items()} for what, losses in lost.items()}
    return Comparison(worst["onnx"], worst["fp32"], worst["onnx_fp32"], least, delegate.version())


def _worst(losses: Sequence[Loss]) -> Loss:
    """Loss of the worst image."""
    return Loss(min(loss.cosine for loss in losses), min(loss.snr_db for loss in losses))


def _lost(sub: SubgraphEntry, expected: Mapping[str, Array], run: Run) -> Loss:
    """Loss of a subgraph on the expected inputs."""
    written = several(run(*read_by(sub, expected)))
    return loss(zip((expected[name] for name in sub.outputs), written, strict=True))


def _run(compiled: Compiled) -> Run:
    def run(*reads: Array) -> Any:
        written = tuple(np.empty(shape, np.float32) for shape in compiled.outputs.values())
        compiled.run([np.ascontiguousarray(x) for x in reads], list(written))
        return written if len(written) > 1 else written[0]

    return run


def _whole(bundle: Bundle) -> Any:
    """A function from the model's input to the tensors of the whole fp32 model that cross subgraphs."""
    import onnxruntime

    model = onnx.load(bundle.file(bundle.manifest.whole), load_external_data=False)
    names = [tensor.name for tensor in bundle.manifest.tensors if tensor.name != bundle.manifest.input]
    present = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    # external weights are located relative to this path
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.file(bundle.manifest.whole).parent))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(x: Array) -> dict[str, Array]:
        return {bundle.manifest.input: x} | dict(zip(names, session.run(names, {bundle.manifest.input: x}), strict=True))

    return run
