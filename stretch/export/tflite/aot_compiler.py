"""Compilation of a TFLite file's signatures for a Qualcomm DSP by LiteRT's tool and the libraries of `onnxruntime-qnn`.

The tool and its Qualcomm plug-in come with `ai-edge-litert`; the libraries
that they load belong to Qualcomm's SDK. The package `onnxruntime-qnn` has the
same libraries: a folder of links to them stands in for the SDK. Neither
package promises that this works.
"""

import importlib
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictors.errors import InfeasibleError, MissingBackendError, StretchError
from predictors.install import install_line
from scheduler.delegates.dsp import find_chip

INSTALL = f"{install_line('litert', 'qnn')}, on Linux x86-64"

#: Time limit for one file, s.
LIMIT = 900

#: Paths of the tool and its plug-in in `ai-edge-litert`.
TOOL = "tools/apply_plugin_main"
PLUGIN = "vendors/qualcomm/compiler/libLiteRtCompilerPlugin_Qualcomm.so"

#: Libraries that the plug-in is linked with and those that they open.
LIBRARIES = ("libQnnHtp.so", "libQnnIr.so", "libQnnSaver.so", "libQnnSystem.so", "libHtpPrepare.so")

#: A library that the plug-in is linked with but calls only for another kind of processor; missing in `onnxruntime-qnn`.
UNUSED = "libQnnLpai.so"

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
    runtime: Path | None  # Folder of the C++ runtime that those need; None if not needed.


@dataclass(frozen=True)
class Code:
    """Compiled code of one signature."""

    entry: str  # Name of its entry point.
    content: bytes  # QNN context binary.
    operators: int  # Number of compiled operators: all of the signature.


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
        taken = _apply(toolchain, _sdk(toolchain, Path(folder) / "sdk"), model, sorted(indices.values()), chip, compiled_file)
        for name, index in indices.items():
            chosen, total, pieces = taken.get(index, (0, len(before[name][1]), 0))
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
    """A folder of links with the names that the plug-in expects."""
    folder.mkdir()
    for name in LIBRARIES:
        (folder / name).symlink_to(toolchain.libraries / name)
    # The loader requires it although nothing in it is called: another loaded library stands in for it.
    (folder / UNUSED).symlink_to(toolchain.libraries / "libQnnSystem.so")
    for file in sorted(toolchain.runtime.iterdir()) if toolchain.runtime else ():
        (folder / file.name).symlink_to(file)
    return folder


def _apply(toolchain: Toolchain, sdk: Path, model: Path, indices: Sequence[int], chip: str, out: Path) -> dict[int, tuple[int, int, int]]:
    """Run the tool; returns compiled operators, all operators and partitions by subgraph."""
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
    """Parse the tool's output: compiled operators, all operators and partitions by subgraph."""
    return {int(index): (int(chosen), int(total), int(pieces)) for index, chosen, total, pieces in _PARTITIONED.findall(text)}


def _read(content: bytes) -> Any:
    """Tables of a file in LiteRT's schema, which includes the tool's custom operator."""
    return importlib.import_module("ai_edge_litert.schema_py_generated").ModelT.InitFromPackedBuf(content, 0)


def _signatures(model: Any) -> dict[str, tuple[int, tuple[tuple[bytes | int, int], ...]]]:
    """Subgraph index of each signature, and its operators with their numbers of inputs."""
    codes = [code.customCode or code.builtinCode for code in model.operatorCodes]
    return {
        definition.signatureKey.decode(): (
            definition.subgraphIndex,
            tuple((codes[op.opcodeIndex], len(op.inputs)) for op in model.subgraphs[definition.subgraphIndex].operators),
        )
        for definition in model.signatureDefs
    }


def _code(signature: str, model: Any, content: bytes, operators: int) -> Code:
    """The code of the one operator of a compiled signature, which follows the file's tables."""
    index = next(definition.subgraphIndex for definition in model.signatureDefs if definition.signatureKey.decode() == signature)
    subgraph_operators = model.subgraphs[index].operators
    if len(subgraph_operators) != 1 or model.operatorCodes[subgraph_operators[0].opcodeIndex].customCode != DISPATCH:
        raise StretchError(f"LiteRT's tool left operators of signature `{signature}` beside its code")
    options = importlib.import_module("flatbuffers.flexbuffers").Loads(bytes(subgraph_operators[0].customOptions))
    start, size = options["bytecode_offset"], options["bytecode_size"]
    code = content[start : start + size]
    if not size or len(code) != size:
        raise StretchError(f"the code of signature `{signature}` does not lie in the file that LiteRT's tool wrote")
    return Code(options["name"], code, operators)
