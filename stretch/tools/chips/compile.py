"""Bundles with code compiled for specific chips: QNN contexts of int8 DSP subgraphs, and LiteRT's compiled code of NPU subgraphs."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UsageError, install_line
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.rows import rows_read_once
from scheduler.bundle.tflite_file import check_same_plan, load_tflite
from scheduler.checks.verify import random_input
from scheduler.delegates.dsp import LIMIT, compile_context, find_chip, load_library, open_context
from scheduler.progress import Progress, silent
from stretch.export.quantize.replay import Array, Loss, loss, replay, runner
from stretch.export.staging import WrittenFile, check_target, copy_files, file_entry, stage_folder, write_manifest, written_files

#: Minimum cosine similarity of compiled code to the int8 subgraph on ONNX Runtime.
MIN_COSINE = 0.999


class ChipSubgraph(msgspec.Struct, frozen=True, kw_only=True):
    """Code of one subgraph for one chip, compared with the int8 subgraph."""

    name: str
    chip: str
    cosine: float  # Cosine similarity of the two outputs.
    snr_db: float  # Signal-to-noise ratio in decibels.


class ChipSignature(ChipSubgraph, frozen=True, kw_only=True):
    """Code of one signature of a TFLite file for one chip, compared with the int8 subgraph."""

    operators: int  # Number of compiled operators: all operators of the signature.


class ChipsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle exported with code for chips."""

    bundle: Path
    files: list[WrittenFile]
    format: Literal["qnn", "tflite"]  # ``qnn`` for one file per subgraph, ``tflite`` for copies of the TFLite file.
    subgraphs: list[ChipSubgraph] | list[ChipSignature]  # Code of each subgraph for each chip.
    checks: dict[str, Any]  # Comparisons, as recorded in the bundle.
    warnings: list[str]


def export_contexts(bundle: Bundle, out: Path, chips: Sequence[str], progress: Progress = silent) -> ChipsAnswer:
    """Write a copy of a bundle that adds code for the DSP of each chip to its int8 subgraphs.

    Args:
        bundle: A bundle with int8 subgraphs on a dsp.
        chips: Keys of `scheduler.delegates.dsp.CHIPS`.

    Returns:
        The written files, and the distance of the code on the simulator from the int8 subgraphs on ONNX Runtime.
    """
    manifest = bundle.manifest
    chosen = _select_subgraphs(bundle, chips, "nothing to compile", "--precision dsp=int8 --images DIR")
    check_target(out, bundle)
    tensors = _tensors(bundle)
    codes: list[ChipSubgraph] = []
    contexts: dict[str, dict[str, str]] = {}
    with stage_folder(out) as folder:
        files = copy_files(bundle, folder)
        for chip in chips:
            for sub in chosen:
                progress(f"{sub.name} for {chip}")
                name = f"contexts/{chip}/{sub.name}.onnx"
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                actual = compile_context(bundle.file(sub.file), chip, path, rows_read_once(sub, tensors))
                lost = loss([(tensors[sub.output], actual)])
                codes.append(ChipSubgraph(name=sub.name, chip=chip, cosine=lost.cosine, snr_db=lost.snr_db))
                if codes[-1].cosine < MIN_COSINE:
                    raise InfeasibleError(
                        f"subgraph `{sub.name}` compiled for {chip} has a cosine of {codes[-1].cosine:.4f} with its int8 file, at least {MIN_COSINE} is required",
                        "run it from the int8 file, which the device compiles itself",
                    )
                contexts.setdefault(chip, {})[sub.name] = name
                files[name] = file_entry(path)
        new_manifest = msgspec.structs.replace(manifest, files=files, contexts={**manifest.contexts, **contexts})
        return _write_answer(folder, out, new_manifest, "contexts", "qnn", codes)


def _select_subgraphs(bundle: Bundle, chips: Sequence[str], problem: str, options: str) -> list[SubgraphEntry]:
    """Return the int8 subgraphs on a dsp; refuse unknown chips, and bundles without such subgraphs."""
    for chip in chips:
        find_chip(chip)
    chosen = [sub for sub in bundle.manifest.subgraphs if sub.processor == "dsp" and sub.precision == "int8"]
    if not chosen:
        raise UsageError(
            f"{bundle.path} has no int8 subgraph on a dsp, so there is {problem}",
            f"make it int8 first: stretch export BUNDLE {options} --out NEW_BUNDLE",
        )
    return chosen


def _tensors(bundle: Bundle) -> dict[str, Array]:
    """Return the tensors between subgraphs for a random input, on ONNX Runtime."""
    manifest = bundle.manifest
    return replay(manifest, {sub.name: runner(str(bundle.file(sub.file))) for sub in manifest.subgraphs}, random_input(bundle))


def _write_answer(
    folder: Path, out: Path, manifest: Manifest, key: str, form: Literal["qnn", "tflite"], codes: Sequence[ChipSubgraph]
) -> ChipsAnswer:
    """Write the manifest of a new bundle with the comparisons of code as checks under a key, and return the answer."""
    record: dict[str, dict[str, dict[str, float]]] = {}
    for code in codes:
        operators = {"operators": code.operators} if isinstance(code, ChipSignature) else {}
        record.setdefault(code.chip, {})[code.name] = {**operators, **Loss(code.cosine, code.snr_db).to_json()}
    checks = {**manifest.checks.get(key, {}), **record}
    manifest = msgspec.structs.replace(manifest, checks={**manifest.checks, key: checks})
    write_manifest(folder, manifest)
    return ChipsAnswer(bundle=out, files=written_files(manifest), format=form, subgraphs=list(codes), checks=checks, warnings=[])


INSTALL = f"{install_line('litert', 'qnn')}, on Linux x86-64"

#: Paths of the tool and its plug-in in `ai-edge-litert`.
TOOL = "tools/apply_plugin_main"
PLUGIN = "vendors/qualcomm/compiler/libLiteRtCompilerPlugin_Qualcomm.so"

#: Libraries that the plug-in is linked with, and libraries that these open.
LIBRARIES = ("libQnnHtp.so", "libQnnIr.so", "libQnnSaver.so", "libQnnSystem.so", "libHtpPrepare.so")

#: A library that the plug-in is linked with but calls only for another kind of processor; missing in `onnxruntime-qnn`.
UNUSED_LIBRARY = "libQnnLpai.so"

#: The custom operator that runs compiled code.
DISPATCH = b"DISPATCH_OP"

_PARTITIONED = re.compile(r"Partitioned subgraph<(\d+)>, selected (\d+) ops, from a total of (\d+) ops\. resulted in (\d+) partitions")
_ERROR = re.compile(r"^ERROR: \[\S+\] (?!ERROR)(.+)", re.MULTILINE)


@dataclass(frozen=True)
class Toolchain:
    """Files of the compiler."""

    tool: Path  # LiteRT's executable.
    plugin: Path  # Its compiler plug-in for Qualcomm.
    libraries: Path  # Folder of Qualcomm's libraries.
    runtime: Path | None  # Folder of the C++ runtime that the libraries need; None if not needed.


@dataclass(frozen=True)
class Code:
    """Compiled code of one signature."""

    entry: str  # Name of the code's entry point.
    content: bytes  # QNN context binary.
    operators: int  # Number of compiled operators: all operators of the signature.


def find_toolchain() -> Toolchain:
    """Find the tool, its plug-in and the libraries."""
    litert = _folder("ai_edge_litert", "ai-edge-litert")
    libraries = _folder("onnxruntime_qnn", "onnxruntime-qnn")
    tool, plugin = litert / TOOL, litert / PLUGIN
    for package, file in (
        ("ai-edge-litert", tool),
        ("ai-edge-litert", plugin),
        *(("onnxruntime-qnn", libraries / name) for name in LIBRARIES),
    ):
        if not file.is_file():
            raise MissingBackendError(f"signatures cannot be compiled: {package} has no {file.name} here", INSTALL)
    runtime = libraries.with_name("onnxruntime_qnn.libs")
    return Toolchain(tool, plugin, libraries, runtime if runtime.is_dir() else None)


def _folder(module: str, package: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise MissingBackendError(f"signatures cannot be compiled: {package} is not installed", INSTALL)
    return Path(next(iter(spec.submodule_search_locations)))


def compile_signatures(model: Path, signatures: Sequence[str], chip: str, out: Path) -> dict[str, Code]:
    """Compile signatures of a TFLite file for the DSP of a chip, leaving the others unchanged."""
    find_chip(chip)
    toolchain = find_toolchain()
    before = _signatures(_read(model.read_bytes()))
    indices = {name: before[name][0] for name in signatures}
    with tempfile.TemporaryDirectory(prefix="nn-stretch-aot.") as folder:
        # The tool requires this file extension.
        compiled_file = Path(folder) / "made.tflite"
        counts = _apply(toolchain, _sdk(toolchain, Path(folder) / "sdk"), model, sorted(indices.values()), chip, compiled_file)
        for name, index in indices.items():
            chosen, total, pieces = counts.get(index, (0, len(before[name][1]), 0))
            if chosen < total or pieces != 1:
                raise InfeasibleError(
                    f"signature `{name}`: LiteRT's plug-in takes {chosen} of {total} operators for {chip}, in {pieces} pieces; "
                    "the rest would run on the CPU",
                    "compile it with --format qnn instead",
                )
        content = compiled_file.read_bytes()
    tables = _read(content)
    after = _signatures(tables)
    if before.keys() != after.keys() or any(before[name] != after[name] for name in before.keys() - indices.keys()):
        raise StretchError(f"LiteRT's tool changed signatures of {model} that were not to be compiled")
    compiled = {name: _code(name, tables, content, len(before[name][1])) for name in signatures}
    out.write_bytes(content)
    return compiled


def _sdk(toolchain: Toolchain, folder: Path) -> Path:
    """Create a folder of links with the names that the plug-in expects, and return it."""
    folder.mkdir()
    for name in LIBRARIES:
        (folder / name).symlink_to(toolchain.libraries / name)
    # The loader requires this library although nothing in it is called, so a link to another library replaces it.
    (folder / UNUSED_LIBRARY).symlink_to(toolchain.libraries / "libQnnSystem.so")
    for file in sorted(toolchain.runtime.iterdir()) if toolchain.runtime else ():
        (folder / file.name).symlink_to(file)
    return folder


def _apply(toolchain: Toolchain, sdk: Path, model: Path, indices: Sequence[int], chip: str, out: Path) -> dict[int, tuple[int, int, int]]:
    """Run the tool; return the numbers of compiled operators, of all operators and of partitions, by subgraph."""
    command = [
        str(toolchain.tool),
        "--cmd=apply",
        f"--model={model.resolve()}",
        f"--o={out}",
        "--soc_manufacturer=Qualcomm",
        f"--soc_model={chip.upper()}",
        "--err=--",
        f"--libs={toolchain.plugin.parent}",
        "--qualcomm_log_level=error",
        f"--subgraphs={','.join(map(str, indices))}",
    ]
    earlier = os.environ.get("LD_LIBRARY_PATH")
    paths = os.pathsep.join([str(sdk), *([earlier] if earlier else [])])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT,
            cwd=sdk,
            env={**os.environ, "LD_LIBRARY_PATH": paths},
        )
    except subprocess.TimeoutExpired as error:
        raise StretchError(f"LiteRT's tool did not compile {model.name} for {chip} within {LIMIT} s") from error
    except OSError as error:
        raise StretchError(f"LiteRT's tool {toolchain.tool} cannot be started: {error.strerror}") from error
    if done.returncode or not out.is_file() or not out.stat().st_size:
        reason = (_ERROR.findall(done.stdout) or [f"it ended with status {done.returncode} and no reason"])[0]
        raise StretchError(f"LiteRT's tool cannot compile {model.name} for {chip}: {reason}", "use --format qnn instead")
    return partitions(done.stdout)


def partitions(text: str) -> dict[int, tuple[int, int, int]]:
    """Parse the tool's output: numbers of compiled operators, of all operators and of partitions, by subgraph."""
    return {int(index): (int(chosen), int(total), int(pieces)) for index, chosen, total, pieces in _PARTITIONED.findall(text)}


def _read(content: bytes) -> Any:
    """Return the tables of a file in LiteRT's schema, which includes the tool's custom operator."""
    return importlib.import_module("ai_edge_litert.schema_py_generated").ModelT.InitFromPackedBuf(content, 0)


def _signatures(model: Any) -> dict[str, tuple[int, tuple[tuple[bytes | int, int], ...]]]:
    """Return the subgraph index of each signature, and its operators with their numbers of inputs."""
    codes = [code.customCode or code.builtinCode for code in model.operatorCodes]
    return {
        definition.signatureKey.decode(): (
            definition.subgraphIndex,
            tuple((codes[op.opcodeIndex], len(op.inputs)) for op in model.subgraphs[definition.subgraphIndex].operators),
        )
        for definition in model.signatureDefs
    }


def _code(signature: str, model: Any, content: bytes, operators: int) -> Code:
    """Return the code of a compiled signature's only operator, which follows the file's tables."""
    index = next(definition.subgraphIndex for definition in model.signatureDefs if definition.signatureKey.decode() == signature)
    subgraph_operators = model.subgraphs[index].operators
    if len(subgraph_operators) != 1 or model.operatorCodes[subgraph_operators[0].opcodeIndex].customCode != DISPATCH:
        raise StretchError(f"LiteRT's tool left operators of signature `{signature}` outside its code")
    options = importlib.import_module("flatbuffers.flexbuffers").Loads(bytes(subgraph_operators[0].customOptions))
    start, size = options["bytecode_offset"], options["bytecode_size"]
    code = content[start : start + size]
    if not size or len(code) != size:
        raise StretchError(f"the code of signature `{signature}` does not lie in the file that LiteRT's tool wrote")
    return Code(options["name"], code, operators)


# Runs code compiled by LiteRT's tool on the simulator of Qualcomm's DSP: ``python -m stretch.tools.chips.compile``.
#
# LiteRT has no dispatcher for a Qualcomm DSP on x86-64. Its code is a QNN
# context, which ONNX Runtime's QNN provider can load and run here. The
# simulator keeps its first chip for the lifetime of its process,
# so each chip has a separate process.


@dataclass(frozen=True)
class Case:
    """One run of compiled code."""

    code: Code
    x: Array  # Input of the code, images with channels last.
    shape: tuple[int, ...]  # Shape of the output, images with channels last.


def simulate(cases: Mapping[str, Case], chip: str) -> dict[str, Array]:
    """Run each piece of compiled code once, and return the outputs."""
    load_library()
    with tempfile.TemporaryDirectory(prefix="nn-stretch-aot.") as folder:
        for number, case in enumerate(cases.values()):
            _wrap(case, Path(folder) / f"{number}.onnx")
            np.save(Path(folder) / f"{number}.in.npy", case.x)
        command = [sys.executable, "-m", "stretch.tools.chips.compile", folder, chip]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            raise StretchError(f"the simulator did not run the code for {chip} within {LIMIT} s") from error
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise StretchError(f"the simulator does not run LiteRT's code for {chip}: {reason}", "use --format qnn instead")
        return {name: np.load(Path(folder) / f"{number}.out.npy", allow_pickle=False) for number, name in enumerate(cases)}


def _wrap(case: Case, out: Path) -> None:
    """Write an ONNX file with the code as its only node."""
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


def export_aot(bundle: Bundle, out: Path, chips: Sequence[str], progress: Progress = silent) -> ChipsAnswer:
    """Write a copy of a bundle that adds copies of its TFLite file with int8 DSP signatures compiled for a chip.

    The TFLite file itself and all other signatures of the copies stay unchanged.

    Args:
        bundle: A bundle with a TFLite file and int8 subgraphs on a dsp.
        chips: Keys of `scheduler.delegates.dsp.CHIPS`.

    Returns:
        The written files, and the distance of the code on the simulator from the int8 subgraphs on ONNX Runtime.
    """
    manifest, options = bundle.manifest, "--format tflite --precision dsp=int8"
    if manifest.tflite is None:
        raise UsageError(
            f"{bundle.path} has no TFLite file whose signatures could be compiled",
            f"write one first: stretch export BUNDLE {options} --out NEW_BUNDLE",
        )
    chosen = _select_subgraphs(bundle, chips, "no signature to compile", options)
    find_toolchain()
    check_target(out, bundle)
    check_same_plan(load_tflite(bundle.file(manifest.tflite)), manifest)
    tensors = _tensors(bundle)
    codes: list[ChipSubgraph] = []
    added = {chip: f"aot/{chip}.tflite" for chip in chips}
    with stage_folder(out) as folder:
        files = copy_files(bundle, folder)
        for chip, name in added.items():
            progress(chip)
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            codes += _compile_signatures(folder / manifest.tflite, path, chip, chosen, tensors)
            files[name] = file_entry(path)
        new_manifest = msgspec.structs.replace(manifest, files=files, aot={**manifest.aot, **added})
        return _write_answer(folder, out, new_manifest, "aot", "tflite", codes)


def _compile_signatures(
    source: Path, path: Path, chip: str, chosen: Sequence[SubgraphEntry], tensors: Mapping[str, Array]
) -> Iterator[ChipSignature]:
    """Compile signatures into a copy of a TFLite file, and compare their code with the int8 subgraphs."""
    code = compile_signatures(source, [sub.name for sub in chosen], chip, path)
    cases = {
        sub.name: Case(code[sub.name], _channels_last(rows_read_once(sub, tensors)), _channels_last(tensors[sub.output]).shape)
        for sub in chosen
    }
    results = simulate(cases, chip)
    for sub in chosen:
        lost = loss([(_channels_last(tensors[sub.output]), results[sub.name])])
        if not lost.cosine >= MIN_COSINE:
            raise InfeasibleError(
                f"signature `{sub.name}` compiled for {chip} has a cosine of {lost.cosine:.4f} with its int8 subgraph, at least {MIN_COSINE} is required",
                "compile it with --format qnn instead",
            )
        yield ChipSignature(name=sub.name, chip=chip, cosine=lost.cosine, snr_db=lost.snr_db, operators=code[sub.name].operators)


def _channels_last(x: Array) -> Array:
    """Return a contiguous array with channels last."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x
