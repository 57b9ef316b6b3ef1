"""The `dsp` delegate: ONNX Runtime's QNN provider, a Hexagon DSP on a device and its simulator on x86-64.

`onnxruntime-qnn` is a plug-in: beside the ordinary `onnxruntime` package it
brings a library that registers one more execution provider, and Qualcomm's
libraries. Nothing is left to the CPU: what the DSP cannot run is refused.
"""

import hashlib
import platform
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictors.errors import StretchError, first_line
from predictors.files import cache_folder
from scheduler.bundle.load import Bundle
from scheduler.delegates.base import Delegate, NodePlace, delegates
from scheduler.delegates.ort_session import SessionCompiled
from scheduler.delegates.qnn_context import find_chip, open_context
from scheduler.delegates.qnn_library import INSTALL, PROVIDER, load_library, missing, session_options
from scheduler.formats.onnx import open_onnx

#: Makes a session from a file with session settings.
Open = Callable[[Path, dict[str, str]], Any]


def cached_context(folder: Path | None, model: Path, versions: str, open_session: Open) -> Any:
    """A session from the cache, or one made from `model` and put there.

    A file is found by the SHA-256 of the model and of the versions, so one that
    is there fits. One that cannot be read is made again. Where the folder
    cannot be written, nothing is kept.
    """
    folder = folder or cache_folder("qnn")
    key = hashlib.sha256(versions.encode() + b"\0" + model.read_bytes()).hexdigest()
    kept = folder / f"{key}.onnx"
    if kept.is_file():
        try:
            return open_session(kept, {})
        except Exception:
            # Whatever is wrong with a cached file, the model it was made of is still there.
            kept.unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            fresh = Path(draft) / "context.onnx"
            settings = {"ep.context_enable": "1", "ep.context_file_path": str(fresh), "ep.context_embed_mode": "1"}
            session = open_session(model, settings)
            if fresh.is_file():
                fresh.replace(kept)
            return session
    except OSError:
        return open_session(model, {})


#: Carry a scale; what is between two of them is computed in integers.
QUANTISERS = ("QuantizeLinear", "DequantizeLinear")

_LOCK = threading.Lock()


@delegates.register("dsp")
class DspDelegate(Delegate):
    """Runs int8 subgraphs on the Hexagon tensor processor (HTP) through QNN.

    A run blocks its thread and releases the GIL. The compiled form of a
    subgraph is kept in the user's cache, keyed by the file's hash and the
    versions that made it.

    Args:
        cache: Folder of compiled subgraphs; the user's cache folder if None.
        chip: Run the code that a bundle brings for this chip (a key of
            `scheduler.delegates.qnn_context.CHIPS`) instead of compiling its
            subgraphs: whoever asks for it trusts who made the bundle.
    """

    summary = "int8 on a Hexagon DSP, or its simulator on x86-64 (QNN)"
    precisions = ("int8",)
    drives = ("dsp",)

    def __init__(self, cache: Path | None = None, chip: str | None = None) -> None:
        self._cache = cache
        self._chip = chip
        if chip is not None:
            find_chip(chip)

    @classmethod
    def unavailable(cls) -> str | None:
        """What is missing: the package, or a library of it."""
        problem = missing()
        return f"{problem} ({INSTALL})" if problem else None

    @classmethod
    def simulated(cls) -> bool:
        """Whether the DSP of this machine is the HTP simulator."""
        return is_simulated()

    def compile(self, model: Path) -> SessionCompiled:
        """Compile an int8 subgraph for the DSP, or load it compiled."""
        library = load_library()
        opened = open_onnx(model)
        name = subgraph_name(opened.proto, model)
        check_int8(opened.proto, name)
        inputs, outputs = opened.ends
        if opened.external:
            session = _session(library, str(model), name)
        else:
            session = cached_context(self._cache, model, library.versions, lambda path, more: _session(library, str(path), name, more))
        return SessionCompiled(session, inputs, outputs)

    def compile_from(self, bundle: Bundle, name: str) -> SessionCompiled:
        """Compile a bundle's subgraph, or load the code that the bundle brings for the chip asked for."""
        subgraph = bundle.subgraph(name)
        if self._chip is None:
            return self.compile(bundle.file(subgraph.file))
        file = bundle.manifest.contexts.get(self._chip, {}).get(name)
        if file is None:
            raise StretchError(
                f"{bundle.path} has no code of subgraph `{name}` for {self._chip}",
                f"write it with `stretch export BUNDLE --format qnn --chips {self._chip} --out NEW_BUNDLE`",
            )
        inputs, outputs = open_onnx(bundle.file(file)).ends
        return SessionCompiled(open_context(bundle.file(file), self._chip), inputs, outputs)

    def places(self, model: Path) -> list[NodePlace]:
        """Each operator: all of them are one graph of the DSP, which tells no times of its own."""
        self.compile(model)
        where = "the Hexagon simulator" if is_simulated() else "the DSP"
        places = []
        for name, op in open_onnx(model).named:
            reason = f"a scale of the integers in {where}'s graph" if op in QUANTISERS else f"in int8, part of {where}'s graph"
            places.append(NodePlace(name, op, reason))
        return places


def is_simulated() -> bool:
    """Whether the DSP of this machine is the simulator: its results count, its times mean nothing."""
    return platform.machine() in ("x86_64", "AMD64")


def subgraph_name(proto: Any, model: Path) -> str:
    """Name of the subgraph in an ONNX file, of the file itself where it does not say."""
    return next((entry.value for entry in proto.metadata_props if entry.key == "stretch.subgraph"), model.stem)


def check_int8(proto: Any, name: str) -> None:
    """Refuse a subgraph that a DSP would compute in floating point or without being asked.

    An operator is int8 if every tensor it reads, small constants of shape and
    axes left out, comes from a `DequantizeLinear`.
    """
    import onnx

    real = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    constants = {tensor.name: tensor.data_type in real and len(tensor.dims) > 0 for tensor in proto.graph.initializer}
    integers = {out for node in proto.graph.node if node.op_type == "DequantizeLinear" for out in node.output}
    for node in proto.graph.node:
        if node.op_type == "EPContext":
            raise StretchError(
                f"subgraph `{name}` was compiled elsewhere, and such code is not run", "export its bundle again with `stretch export`"
            )
        if node.op_type in QUANTISERS:
            continue
        if _miscomputed(node):
            raise StretchError(
                f"subgraph `{name}`: QNN computes its operator `{node.name or node.op_type}` wrongly (average pooling over windows that overhang)",
                "run this subgraph elsewhere with --map dsp=cpu",
            )
        for tensor in node.input:
            if tensor and tensor not in integers and constants.get(tensor, True):
                raise StretchError(
                    f"subgraph `{name}` is float (operator `{node.name or node.op_type}`), the dsp delegate runs int8 alone",
                    "make it int8 with `stretch export BUNDLE --precision dsp=int8 --images DIR --out NEW_BUNDLE`, or choose another delegate with --map",
                )


def _miscomputed(node: Any) -> bool:
    """Whether QNN 2.51 takes an operator and gives other numbers than ONNX defines, as its conformance test shows.

    It divides by the wrong count in average pools whose last window overhangs
    (``ceil_mode``), and in those of even windows that count their padding.
    """
    if node.op_type != "AveragePool":
        return False
    attributes = {a.name: a.i if not a.ints else tuple(a.ints) for a in node.attribute}
    counts_padding = attributes.get("count_include_pad") == 1 and any(attributes.get("pads", ()))
    return attributes.get("ceil_mode") == 1 or (counts_padding and any(size % 2 == 0 for size in attributes["kernel_shape"]))


def _session(library: Any, file: str, name: str, more: dict[str, str] | None = None) -> Any:
    """A session of which every operator is on the DSP."""
    import onnxruntime

    options = session_options(library, {"session.disable_cpu_ep_fallback": "1", **(more or {})})
    try:
        with _LOCK:  # the provider's set-up of its backend is global
            return onnxruntime.InferenceSession(file, options)
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        left = _left_to_the_cpu(library, file)
        if left:
            raise StretchError(
                f"subgraph `{name}`: the DSP does not run its operator `{left[0]}`"
                + (f" and {len(left) - 1} more" if len(left) > 1 else ""),
                "run this subgraph elsewhere with --map dsp=cpu",
            ) from error
        raise StretchError(f"the QNN provider cannot compile subgraph `{name}`: {first_line(error)}") from error


def _left_to_the_cpu(library: Any, file: str) -> list[str]:
    """Operators that the provider did not take, asked of a session that is never run."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(file, session_options(library, {"session.record_ep_graph_assignment_info": "1"}))
    except Exception:
        return []
    return [
        node.name or node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != PROVIDER
        for node in part.get_nodes()
        if node.op_type not in QUANTISERS
    ]
