"""Numeric checks of every exported file against torch."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from predictors.errors import StretchError, first_line
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest
from scheduler.bundle.rows import Rows, cut
from scheduler.bundle.statements import MAX_ROUNDING, ROUNDING
from scheduler.checks.verify import KEY, TOLERANCE, Sample, random_input
from scheduler.runtime.inputs import as_arrays
from scheduler.runtime.sequential import MARGIN, relative
from stretch.export.quantize.replay import as_tuple, runner
from stretch.network.capture import Captured
from stretch.network.capture.inputs import SINGLE_INPUT, Inputs
from stretch.network.capture.results import named_outputs
from stretch.transform.model import Branch, BranchedModel

#: Number of roundings of the input to measure torch's rounding error, because a single error may be small by chance.
ROUNDINGS = 4

#: Seed of the input for comparisons, and of the output sample in the bundle.
SEED = 0

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class _CheckedFile:
    """A file and its expected outputs."""

    name: str
    path: str  # Path relative to the bundle.
    module: nn.Module  # Source of the export.
    call: Callable[[Any, Tensors], Tensors]  # Runs a module on inputs.
    reads: Tensors  # Inputs.
    expected: Tensors  # Outputs of the module.
    rows: Sequence[Rows | None]  # Rows of each input that the file reads; None for all.

    def error(self, folder: Path) -> float:
        """Return the maximum relative distance between ONNX Runtime and torch."""
        reads = [cut(read.numpy(), rows) for read, rows in zip(self.reads, self.rows, strict=True)]
        try:
            actual = as_tuple(runner(str(folder / self.path))(*reads))
        # ONNX Runtime's exceptions share no base class of their own
        except Exception as error:
            reason = f"ONNX Runtime does not run the export of `{self.name}`: {first_line(error)}"
            raise StretchError(reason, "run this network with torch, or give the part without that operator as `module:factory`") from error
        return float(np.max([relative(a, b.numpy()) for a, b in zip(actual, self.expected, strict=True)]))


def check_export(
    folder: Path, manifest: Manifest, original: Captured, model: BranchedModel, controls: Mapping[str, BranchedModel]
) -> dict[str, Any]:
    """Compare every file of a bundle on ONNX Runtime with torch.

    Subgraphs read torch's tensors, so each is checked separately. An error above `TOLERANCE` is compared
    with torch's rounding error, the distance between its results in fp32 and in float64. This distance shows
    how much the order of float sums matters in this network; the limit is `MARGIN` times the rounding error.

    Args:
        controls: Networks of the manifest's controls, without the original, by name.

    Returns:
        Errors max|a - b| / max|b|; ``rounding``, torch's rounding error by tensor, if it exceeds
        `TOLERANCE` (`scheduler.runtime.sequential.allowed_distance`); and ``sample``, torch's result.
    """
    drawn = random_input(Bundle(folder, manifest), SEED)
    inputs = [torch.from_numpy(array) for array in as_arrays(drawn, manifest.inputs).values()]
    tolerance, errors = TOLERANCE, {}
    with torch.inference_mode():
        files = list(_files(manifest, original, model, controls, inputs))
        for file in files:
            errors[file.name] = error = file.error(folder)
            if not error <= TOLERANCE:
                own_error = max(own_errors(file.call, file.module, file.reads))
                if own_error > MAX_ROUNDING or not error <= MARGIN * own_error:
                    raise _mismatch_error(file, error, own_error)
                tolerance = max(tolerance, MARGIN * own_error)
        rounding = {}
        if max(errors.values()) * MARGIN > TOLERANCE:
            errors_of = own_errors(lambda net, x: list(_run(net, manifest, x).values()), model, inputs)
            rounding = {
                name: own_error
                for name, own_error in zip(_run(model, manifest, inputs), errors_of, strict=True)
                if own_error * MARGIN > TOLERANCE
            }
    return {
        "tolerance": tolerance,
        "max_error": max(errors.values()),
        "errors": errors,
        "reference": f"torch {torch.__version__}",
        ROUNDING: rounding,
        KEY: msgspec.to_builtins(Sample.of(drawn, files[0].expected[0].numpy(), SEED)),
    }


def _files(
    manifest: Manifest, original: Captured, model: BranchedModel, controls: Mapping[str, BranchedModel], inputs: Tensors
) -> Iterator[_CheckedFile]:
    """Yield the whole network, each subgraph and each control."""
    everything = [None] * len(inputs)
    yield _CheckedFile("model", manifest.whole, model, _results, inputs, _results(model, inputs), everything)
    tensors = _run(model, manifest, inputs)
    for sub in manifest.subgraphs:
        reads, rows = [tensors[name] for name in sub.inputs], [sub.rows.get(name) for name in sub.inputs]
        branch = model.branch(sub.segment, sub.name.removeprefix(f"{sub.segment}."))
        yield _CheckedFile(sub.name, sub.file, branch, _torch, reads, [tensors[name] for name in sub.outputs], rows)
    for name, path in manifest.controls.items():
        if name == "original":
            call: Callable[[Any, Tensors], Tensors] = partial(_own_results, original)
            yield _CheckedFile(name, path, original.module, call, inputs, call(original.module, inputs), everything)
        else:
            yield _CheckedFile(name, path, controls[name], _results, inputs, _results(controls[name], inputs), everything)


def _run(model: BranchedModel, manifest: Manifest, inputs: Tensors) -> dict[str, torch.Tensor]:
    """Return torch's value of every tensor between subgraphs, by name."""
    tensors = dict(zip(manifest.inputs, inputs, strict=True))
    joins = {join.segment: join for join in manifest.joins}
    for sub in manifest.subgraphs:
        branch = model.branch(sub.segment, sub.name.removeprefix(f"{sub.segment}."))
        tensors.update(zip(sub.outputs, _torch(branch, [tensors[name] for name in sub.inputs]), strict=True))
        join = joins.get(sub.segment)
        if join is not None and all(name in tensors for name in join.inputs):
            tensors[join.output] = model.get_submodule(f"{sub.segment}.join")(*(tensors[name] for name in join.inputs))
    return tensors


def _mismatch_error(file: _CheckedFile, error: float, own_error: float) -> StretchError:
    """Return the error for a file that differs: the file is wrong, outputs are indices of equal numbers, or the network amplifies rounding errors."""
    problem = f"the export of `{file.name}` differs from torch by {error:.2g} of its largest output"
    if own_error > MAX_ROUNDING:
        return StretchError(
            f"{problem}, and torch's own fp32 result is off by {own_error:.2g} from that in float64: this network amplifies rounding errors",
            f"fp32 must be exact to {MAX_ROUNDING:g} of the largest output: give trained weights if these are random",
        )
    if any(torch.equal(tensor, tensor.round()) and tensor.any() for tensor in file.expected):
        return StretchError(
            f"{problem}, and one of its outputs has whole numbers: indices of equal numbers, such as those of topk or argmax, have no fixed order",
            "return the numbers instead of their indices, or give trained weights if these are random",
        )
    return StretchError(problem, "please report this with the model's name")


def own_errors(call: Callable[[Any, Tensors], Tensors], module: nn.Module, reads: Tensors) -> list[float]:
    """Return the distance of torch's fp32 results from float64; for each result, the maximum over several roundings of the input.

    Args:
        call: Returns the results of a module for inputs.
        reads: The inputs.
    """
    try:
        exact = call(copy.deepcopy(module).double(), [x.double() if x.is_floating_point() else x for x in reads])
    except RuntimeError:  # the module casts to fp32 itself, so only the effect of rounded inputs is measurable
        exact = call(module, reads)
    tried = [call(module, rounded) for rounded in (reads, *(_round_randomly(reads, seed) for seed in range(ROUNDINGS)))]
    return [max(relative(result[i].numpy(), reference.numpy()) for result in tried) for i, reference in enumerate(exact)]


def _round_randomly(reads: Tensors, seed: int) -> list[torch.Tensor]:
    """Return the inputs with each number randomly rounded up or down."""
    generator = torch.Generator().manual_seed(seed)

    def towards(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.rand(x.shape, generator=generator) < 0.5, -torch.inf, torch.inf).to(x.dtype)

    return [torch.nextafter(x, towards(x)) if x.is_floating_point() else x for x in reads]


def _results(model: BranchedModel, inputs: Tensors) -> list[torch.Tensor]:
    """Return the outputs of a branched network, in the order of its files' outputs."""
    results = dict(named_outputs(model(*(x.clone() for x in inputs)), model.returned))
    return [results[name] for name in model.original_outputs]


def _own_results(original: Captured, module: nn.Module, tensors: Tensors) -> list[torch.Tensor]:
    """Return the outputs of the original module, in the order of its graph's outputs."""
    names = [op.name for op in original.graph.inputs]
    # a network restored from a bundle takes its tensors by position
    by_name = names != [SINGLE_INPUT] and not isinstance(module, BranchedModel)
    inputs = Inputs({name: tuple(x.shape) for name, x in zip(names, tensors, strict=True)}, named=by_name)
    returned = inputs.call(module.eval(), [x.clone() for x in tensors])
    results = dict(named_outputs(returned, original.returned))
    return [results[name] for name in original.graph.outputs]


def _torch(branch: Branch, reads: Tensors) -> Tensors:
    """Return the outputs of a branch, in the order of its file's outputs."""
    written = branch(*reads)
    return written if isinstance(written, tuple) else (written,)
