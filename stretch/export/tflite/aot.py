"""Export of a bundle with the int8 DSP signatures of its TFLite file compiled ahead of time for named chips."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import InfeasibleError, StretchError, UsageError
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.rows import read_alone
from scheduler.bundle.tflite_file import check_belongs, load_tflite
from scheduler.checks.verify import random_input
from scheduler.delegates.dsp import LIMIT, find_chip, load_library, open_context
from scheduler.progress import Progress, silent
from stretch.export.staging import check_target, copy_files, file_entry, staged, write_manifest
from stretch.export.tflite.aot_compiler import Code, compile_signatures, find_toolchain
from stretch.quantize.compare import Loss, loss
from stretch.quantize.replay import replay, runner

# Runs code compiled by LiteRT's tool on the simulator of Qualcomm's DSP: ``python -m stretch.export.tflite.aot``.
#
# LiteRT has no dispatcher for a Qualcomm DSP on x86-64. Its code is a QNN
# context that ONNX Runtime's QNN provider can load, which runs it here. The
# simulator keeps its first chip for the lifetime of its process,
# so each chip has a separate process.

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One run of compiled code."""

    code: Code
    x: Array  # Its input, images with channels last.
    shape: tuple[int, ...]  # Shape of its output, images with channels last.


def simulate(cases: Mapping[str, Case], chip: str) -> dict[str, Array]:
    """Outputs of compiled code, each run once."""
    load_library()
    with tempfile.TemporaryDirectory(prefix="nn-stretch-aot.") as folder:
        for number, case in enumerate(cases.values()):
            _wrap(case, Path(folder) / f"{number}.onnx")
            np.save(Path(folder) / f"{number}.in.npy", case.x)
        command = [sys.executable, "-m", "stretch.export.tflite.aot", folder, chip]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            raise StretchError(f"the simulator did not run the code for {chip} within {LIMIT} s") from error
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise StretchError(f"the simulator does not run LiteRT's code for {chip}: {reason}", "use --format qnn instead")
        return {name: np.load(Path(folder) / f"{number}.out.npy", allow_pickle=False) for number, name in enumerate(cases)}


def _wrap(case: Case, out: Path) -> None:
    """Write an ONNX file whose only node is the code."""
    import onnx
    from onnx import TensorProto, helper

    node = helper.make_node(
        "EPContext",
        ["x"],
        ["y"],
        name=case.code.entry,
        domain="com.microsoft",
        main_context=1,
        embed_mode=1,
        ep_cache_context=case.code.content,
        source="QNNExecutionProvider",
        partition_name=case.code.entry,
    )
    graph = helper.make_graph(
        [node],
        "aot",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, case.x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, case.shape)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), str(out))


def main() -> None:
    """Run every ``N.onnx`` of a folder: FOLDER CHIP."""
    folder, chip = sys.argv[1:]
    for file in sorted(Path(folder).glob("*.onnx")):
        session = open_context(file, chip)
        (y,) = session.run(None, {"x": np.load(file.with_suffix(".in.npy"), allow_pickle=False)})
        np.save(file.with_suffix(".out.npy"), y)


if __name__ == "__main__":
    try:
        main()
    except StretchError as error:
        sys.exit(error.message)


#: Minimum cosine of compiled code with the int8 subgraph on ONNX Runtime.
MIN_COSINE = 0.999


@dataclass(frozen=True)
class CompiledSignature:
    """One compiled signature for one chip."""

    operators: int  # Number of compiled operators: all of the signature.
    loss: Loss  # Of the code on the simulator against the int8 subgraph on ONNX Runtime.

    def to_json(self) -> dict[str, float]:
        """All numbers."""
        return {"operators": self.operators, **self.loss.to_json()}


@dataclass
class AotExport:
    """What `export_aot` wrote."""

    manifest: Manifest  # Of the new bundle.
    compiled: dict[str, dict[str, CompiledSignature]]  # By chip and signature.


def export_aot(bundle: Bundle, out: Path, chips: Sequence[str], progress: Progress = silent) -> AotExport:
    """Write a copy of a bundle that adds copies of its TFLite file with int8 DSP signatures compiled for a chip.

    The TFLite file itself and all other signatures of the copies stay unchanged.

    Args:
        bundle: A bundle with a TFLite file and int8 subgraphs on a dsp.
        chips: Keys of `scheduler.delegates.dsp.CHIPS`.
    """
    chosen = _chosen(bundle, out, chips)
    manifest = bundle.manifest
    assert manifest.tflite is not None
    find_toolchain()
    check_target(out)
    model = load_tflite(bundle.file(manifest.tflite))
    check_belongs(model, manifest)
    tensors = replay(manifest, {sub.name: runner(str(bundle.file(sub.file))) for sub in manifest.subgraphs}, random_input(bundle))
    compiled: dict[str, dict[str, CompiledSignature]] = {}
    with staged(out) as folder:
        files = copy_files(bundle, folder)
        for chip in dict.fromkeys(chips):
            progress(chip)
            path = folder / "aot" / f"{chip}.tflite"
            path.parent.mkdir(parents=True, exist_ok=True)
            compiled[chip] = _compiled(folder / manifest.tflite, path, chip, chosen, tensors)
            files[f"aot/{chip}.tflite"] = file_entry(path)
        record = {chip: {name: code.to_json() for name, code in signatures.items()} for chip, signatures in compiled.items()}
        new_manifest = msgspec.structs.replace(
            manifest,
            files=files,
            aot={**manifest.aot, **{chip: f"aot/{chip}.tflite" for chip in compiled}},
            checks=dict(manifest.checks) | {"aot": {**manifest.checks.get("aot", {}), **record}},
        )
        write_manifest(folder, new_manifest)
    return AotExport(new_manifest, compiled)


def _chosen(bundle: Bundle, out: Path, chips: Sequence[str]) -> list[SubgraphEntry]:
    """The subgraphs whose signatures are compiled; raises an error if there are none."""
    manifest = bundle.manifest
    for chip in chips:
        find_chip(chip)
    if out.resolve() == bundle.path.resolve():
        raise UsageError(f"the new bundle cannot replace {bundle.path}, which it is made from", "choose another folder with --out")
    if manifest.tflite is None:
        raise UsageError(
            f"{bundle.path} has no TFLite file whose signatures could be compiled",
            "write one first: stretch export BUNDLE --format tflite --precision dsp=int8 --out NEW_BUNDLE",
        )
    chosen = [sub for sub in manifest.subgraphs if sub.processor == "dsp" and sub.precision == "int8"]
    if not chosen:
        raise UsageError(
            f"{bundle.path} has no int8 subgraph on a dsp, so there is no signature to compile",
            "make it int8 first: stretch export BUNDLE --format tflite --precision dsp=int8 --out NEW_BUNDLE",
        )
    return chosen


def _compiled(
    source: Path, path: Path, chip: str, chosen: Sequence[SubgraphEntry], tensors: Mapping[str, Array]
) -> dict[str, CompiledSignature]:
    """Compile signatures into a copy of a TFLite file, and compare their code with the int8 subgraphs."""
    code = compile_signatures(source, [sub.name for sub in chosen], chip, path)
    cases = {sub.name: Case(code[sub.name], _last(read_alone(sub, tensors)), _last(tensors[sub.output]).shape) for sub in chosen}
    got = simulate(cases, chip)
    compiled = {
        sub.name: CompiledSignature(code[sub.name].operators, loss([(_last(tensors[sub.output]), got[sub.name])])) for sub in chosen
    }
    for signature, signature_code in compiled.items():
        if not signature_code.loss.cosine >= MIN_COSINE:
            raise InfeasibleError(
                f"signature `{signature}` compiled for {chip} has a cosine of {signature_code.loss.cosine:.4f} with its int8 subgraph, at least {MIN_COSINE} is required",
                "compile it with --format qnn instead",
            )
    return compiled


def _last(x: Array) -> Array:
    """A contiguous array with channels last."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x
