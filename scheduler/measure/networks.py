"""Networks on one processor of this machine: whole, and kernel by kernel as the delegate's profiler tells."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from scheduler.cores import pinned
from scheduler.delegates import Compiled, Delegate


def runner(compiled: Compiled, cores: tuple[int, ...], seed: int = 0) -> Callable[[], None]:
    """What runs a compiled network once, from and into buffers of its own.

    Args:
        cores: The calling thread is pinned to the first; empty for anywhere.
    """
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(shape, np.float32) for shape in compiled.inputs.values()]
    outputs = [np.zeros(shape, np.float32) for shape in compiled.outputs.values()]
    call = compiled.bind(inputs, outputs)

    def run() -> None:
        with pinned(cores[:1]):
            call.run()

    return run


def time_operators(delegate: Delegate, model: Path, cores: tuple[int, ...], operators: Sequence[str]) -> tuple[dict[str, float], float]:
    """Times of operators inside a network, by the delegate's profiler.

    Args:
        model: ONNX file whose nodes are named after operators, with a suffix where one has several.
        cores: The calling thread is pinned to the first.

    Returns:
        ms of each operator that has a kernel of its own, and ms of kernels that the delegate added, such as changes of layout.
    """
    known = set(operators)
    with pinned(cores[:1]):
        places = delegate.places(model)
    times: dict[str, float] = {}
    added = 0.0
    for place in places:
        owner = place.name if place.name in known else place.name.rpartition(".")[0]
        if place.ms is None:
            continue
        if owner in known:
            times[owner] = times.get(owner, 0.0) + place.ms
        else:
            added += place.ms
    return times, added


def time_kernels(operators: Mapping[str, float], kernels: Sequence[tuple[str, ...]]) -> list[float | None]:
    """Times of kernels from those of their operators, ms; None where the delegate ran none of a kernel's operators by itself."""
    sums = [[operators[name] for name in names if name in operators] for names in kernels]
    return [sum(some) if some and sum(some) > 0 else None for some in sums]
