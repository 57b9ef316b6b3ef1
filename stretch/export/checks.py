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
from scheduler.runtime.inputs import as_arrays
from scheduler.runtime.sequential import relative
from stretch.capture import Captured
from stretch.capture.inputs import ONLY, Inputs
from stretch.capture.results import pairs
from stretch.transform.model import Branch, BranchedModel

#: Largest difference that fp32 rounding explains, relative to the largest output.
TOLERANCE = 1e-4

#: Other roundings of the input that are tried before a file that differs is called wrong: by chance one may move little.
ROUNDINGS = 4

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
    given = [torch.from_numpy(each) for each in as_arrays(drawn, manifest.inputs).values()]
    errors: dict[str, float] = {}
    with torch.inference_mode():
        outputs = _results(model, given)
        errors["model"] = _worst(_onnx(folder / manifest.whole, given), outputs)
        tensors = dict(zip(manifest.inputs, given, strict=True))
        joins = {join.segment: join for join in manifest.joins}
        for sub in manifest.subgraphs:
            reads = [tensors[name] for name in sub.inputs]
            expected = _torch(model.branch(sub.segment, sub.name.removeprefix(f"{sub.segment}.")), reads)
            got = _onnx(folder / sub.file, [cut(read, sub.rows.get(name)) for name, read in zip(sub.inputs, reads, strict=True)])
            errors[sub.name] = _worst(got, expected)
            tensors.update(zip(sub.outputs, expected, strict=True))
            join = joins.get(sub.segment)
            if join is not None and all(name in tensors for name in join.inputs):
                parts = [tensors[name] for name in join.inputs]
                tensors[join.output] = model.get_submodule(f"{sub.segment}.join")(*parts)
        for name, file in manifest.controls.items():
            if name == "original":
                expected = _own_results(original, given)
            else:
                assert sequential is not None
                expected = _results(sequential, given)
            errors[name] = _worst(_onnx(folder / file, given), expected)
    for name, error in errors.items():
        if not error <= TOLERANCE:
            raise _refused(name, error, model, given, outputs)
    return {
        "tolerance": TOLERANCE,
        "max_error": max(errors.values()),
        "errors": errors,
        "reference": f"torch {torch.__version__}",
        KEY: msgspec.to_builtins(Sample.of(drawn, outputs[0].numpy(), SEED)),
    }


def _refused(name: str, error: float, model: BranchedModel, given: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> StretchError:
    """What to say of a file that differs: that it is wrong, or that nobody can tell, since no two ways to add numbers up agree."""
    what = f"the export of `{name}` differs from torch by {error:.2g} of its largest output"
    with torch.inference_mode():
        moved = max(_moved(model, given, outputs, seed) for seed in range(ROUNDINGS))
    if moved > TOLERANCE:
        return StretchError(
            f"{what}, and torch's own output moves by {moved:.2g} where its input is rounded otherwise: these weights blow roundings up",
            "give trained weights",
        )
    return StretchError(what, "please report this with the model's name")


def _moved(model: BranchedModel, given: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], seed: int) -> float:
    """How far torch's own outputs move where each number of the input is rounded up or down, as a seed has it."""
    generator = torch.Generator().manual_seed(seed)
    towards = [torch.where(torch.rand(x.shape, generator=generator) < 0.5, -torch.inf, torch.inf).to(x.dtype) for x in given]
    other = _results(model, [torch.nextafter(x, to) for x, to in zip(given, towards, strict=True)])
    return _worst([each.numpy() for each in other], outputs)


def _results(model: BranchedModel, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a branched network computes, in the order of its files' outputs."""
    found = dict(pairs(model(*(x.clone() for x in given)), model.returned))
    return [found[name] for name in model.original_outputs]


def _own_results(original: Captured, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the original itself computes, in the order of its graph's outputs."""
    names = [op.name for op in original.graph.inputs]
    inputs = Inputs({name: tuple(x.shape) for name, x in zip(names, given, strict=True)}, named=names != [ONLY])
    returned = inputs.call(original.module.eval(), [x.clone() for x in given])
    found = dict(pairs(returned, original.returned))
    return [found[name] for name in original.graph.outputs]


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


def _worst(got: Sequence[Array], expected: Sequence[torch.Tensor]) -> float:
    """The largest error of several tensors; NaN if one is."""
    return float(np.max([_error(a, b) for a, b in zip(got, expected, strict=True)]))


def _error(got: Array, expected: torch.Tensor) -> float:
    return relative(got, expected.numpy())
