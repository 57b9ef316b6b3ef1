"""Run one network through the whole tool, in a separate process: capture, plan, branch, write, run and compare."""

import contextlib
import re
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.coverage.networks import input_of

DEVICE = "mi9"
#: Processors of the plans.
PROCESSORS = {"two": ("cpu", "gpu"), "three": ("cpu", "gpu", "dsp")}
#: Seeds of random weights: the first one for which the network is well conditioned, otherwise the best one.
SEEDS = range(6)
#: Maximum change of torch's own results, relative to the largest result, after different rounding of the input.
CONDITION = 1e-5


def try_network(name: str) -> dict[str, Any]:
    """Return the result of a network; a failed step adds its reason in one line, and later steps are left out."""
    row: dict[str, Any] = {"network": name}
    with _step(row, "load"):
        loaded, shape = _loaded(name, row)
        row["parameters"] = sum(parameter.numel() for parameter in loaded.module.parameters())
    if "failed" in row:
        return row
    with _step(row, "capture"):
        from stretch.network.capture import capture

        captured = capture(loaded.module, shape, name)
        row |= {"operators": len(captured.graph.ops), "opaque": sum(op.kind == "opaque" for op in captured.graph.ops)}
        row |= {"outputs": len(captured.graph.outputs)}
    for key in PROCESSORS if "failed" not in row else ():
        row[key] = _branched(loaded, shape, PROCESSORS[key])
    row["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return row


def _loaded(name: str, row: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """Return the network with random weights that can be compared, and its input shape.

    With some random weights a network amplifies rounding by orders of magnitude, so that torch does not
    agree with itself, and results of another runtime show nothing. Torch alone detects this here.
    """
    import torch

    from stretch.network.models.load import load_model

    best = float("inf")
    for seed in SEEDS:
        loaded = load_model(name, weights="none", seed=seed)
        shape = input_of(name, loaded.input_shape)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            original, disturbed = (loaded.module.eval()(value) for value in (x, torch.nextafter(x, x.flip(-1))))
        condition = _distance(disturbed, original)
        if condition < best or seed == SEEDS[0]:
            chosen, best = loaded, condition
            row |= {"seed": seed, "condition": condition}
        if best <= CONDITION:
            break
    return chosen, shape


def _branched(loaded: Any, shape: tuple[int, ...], processors: tuple[str, ...]) -> dict[str, Any]:
    """Branch and write the network, run it by the scheduler, and compare it with the branched module and the original."""
    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, _step(row, "branch"):
        import torch

        import stretch
        from predictors.joins import join_of
        from scheduler import Session

        bundle = Path(folder) / "bundle"
        result = stretch.branch(loaded.module, DEVICE, out=bundle, input_shape=shape, processors=processors, controls=False)
        assert result.model is not None
        branched = [part for part in result.plan.design.segments if len(part.branches) > 1]
        exact = [part for part in branched if join_of(part.join).exact]
        row |= {key: round(seconds, 2) for key, seconds in result.seconds.items()}
        row |= {
            "branches": max([len(part.branches) for part in branched], default=1),
            "exact": len(exact),
            "stretched": len(branched) - len(exact),
        }
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            want, original = result.model(x), loaded.module.eval()(x)
        with Session(bundle, dict.fromkeys(result.plan.design.processors, "cpu")) as session:
            got = session.run(x.numpy())
        row["sides"] = len(result.plan.design.sides)
        row["distance"] = _distance(got, want)
        if not row["stretched"]:
            row["from original"] = _distance(got, original)
    return row


def _distance(one: Any, other: Any) -> float:
    """Return the maximum difference of any result, relative to the largest number of the second one."""
    import torch

    from stretch.network.capture.results import walk_leaves

    ours, theirs = ({key: leaf for key, leaf in _named(value, walk_leaves) if isinstance(leaf, torch.Tensor)} for value in (one, other))
    if len(ours) == len(theirs) == 1:
        # a session returns a single result without its name
        ours = dict.fromkeys(theirs, next(iter(ours.values())))
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(float(f"{float((ours[key] - theirs[key]).abs().max() / theirs[key].abs().max()):.1e}") for key in theirs)


def _named(result: Any, keyed: Any) -> list[tuple[str, Any]]:
    """Return the results by name, from a session's arrays or array, or from a module's structure."""
    import numpy as np
    import torch

    if isinstance(result, np.ndarray):
        result = torch.from_numpy(result)
    if isinstance(result, dict) and all(isinstance(item, np.ndarray) for item in result.values()):
        return [(key, torch.from_numpy(item)) for key, item in result.items()]
    return list(keyed(result))


@contextlib.contextmanager
def _step(row: dict[str, Any], name: str) -> Iterator[None]:
    """Time a step; an exception becomes the step's ``error``."""
    from predictors.errors import StretchError

    start = time.perf_counter()
    try:
        yield
    except StretchError as error:
        # the message would contain a different temporary folder each time
        why = re.sub(rf"{tempfile.gettempdir()}/[^/ ]+/", "", f"{error.message}; {error.hint or ''}")
        row |= {"failed": name, "refused": True, "why": why}
    except Exception as error:
        row |= {"failed": name, "refused": False, "why": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    row[f"{name} s"] = round(time.perf_counter() - start, 2)
