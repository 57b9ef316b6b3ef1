"""Does every exported file compute what torch computes?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from predictors.errors import StretchError
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest
from scheduler.bundle.rows import cut
from scheduler.checks.sample import KEY, Sample
from scheduler.checks.verify import random_input
from stretch.capture import Captured
from stretch.transform.model import Branch, BranchedModel

#: Largest difference that fp32 rounding explains, relative to the largest output.
TOLERANCE = 1e-4

#: Seed of the input that files are compared on, and of the sample of the output that the bundle keeps.
SEED = 0

Array = NDArray[np.float32]


def check_export(
    folder: Path, manifest: Manifest, original: Captured, model: BranchedModel, sequential: BranchedModel | None
) -> dict[str, Any]:
    """Run every file of a bundle on ONNX Runtime beside torch.

    Subgraphs read what torch computed before them, so each is judged alone.

    Args:
        folder: The bundle's folder.
        manifest: Its description.
        original: The original network.
        model: The branched network.
        sequential: The sequential control, or None.

    Returns:
        ``tolerance``, ``max_error`` and the error of each file, every one as
        max|a - b| / max|b|; and ``sample``, what torch gives for one input (`scheduler.checks.sample`).

    Raises:
        StretchError: If an error is above `TOLERANCE` or not a number; names the file.
    """
    drawn = random_input(Bundle(folder, manifest), SEED)
    x = torch.from_numpy(drawn)
    errors: dict[str, float] = {}
    with torch.inference_mode():
        output = model(x)
        errors["model"] = _error(_onnx(folder / manifest.whole, [x])[0], output)
        tensors = {manifest.input: x}
        joins = {join.segment: join for join in manifest.joins}
        for sub in manifest.subgraphs:
            reads = [tensors[name] for name in sub.inputs]
            expected = _torch(model.branch(sub.segment, sub.name.removeprefix(f"{sub.segment}.")), reads)
            got = _onnx(folder / sub.file, [cut(read, sub.rows.get(name)) for name, read in zip(sub.inputs, reads, strict=True)])
            errors[sub.name] = max(_error(a, b) for a, b in zip(got, expected, strict=True))
            tensors.update(zip(sub.outputs, expected, strict=True))
            join = joins.get(sub.segment)
            if join is not None and all(name in tensors for name in join.inputs):
                parts = [tensors[name] for name in join.inputs]
                tensors[join.output] = model.get_submodule(f"{sub.segment}.join")(*parts)
        for name, file in manifest.controls.items():
            module = original.module.eval() if name == "original" else sequential
            assert module is not None
            errors[name] = _error(_onnx(folder / file, [x])[0], module(x))
    for name, error in errors.items():
        if not error <= TOLERANCE:
            raise StretchError(
                f"the export of `{name}` differs from torch by {error:.2g} of its largest output",
                "please report this with the model's name",
            )
    return {
        "tolerance": TOLERANCE,
        "max_error": max(errors.values()),
        "errors": errors,
        "reference": f"torch {torch.__version__}",
        KEY: msgspec.to_builtins(Sample.of(drawn, output.numpy(), SEED)),
    }


def _torch(branch: Branch, reads: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """What a branch writes, in the order of its file's outputs."""
    written = branch(*reads)
    return written if isinstance(written, tuple) else (written,)


def _onnx(path: Path, reads: Sequence[torch.Tensor]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    result: list[Array] = session.run(None, {name: read.numpy() for name, read in zip(names, reads, strict=True)})
    return result


def _error(got: Array, expected: torch.Tensor) -> float:
    want = expected.numpy()
    largest = float(np.abs(want).max())
    difference = float(np.abs(got - want).max())
    return difference / largest if largest > 0 else difference
