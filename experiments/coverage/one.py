"""One network through the whole tool, in a process of its own: captured, planned, branched, written, run, compared."""

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
#: Random weights that a network may have: the first for which it is well conditioned, or else those for which it is best.
SEEDS = range(6)
#: Largest change of torch's own results, relative to the largest of them, by an input that is rounded otherwise.
CONDITION = 1e-5


def try_network(name: str) -> dict[str, Any]:
    """Return the result of a network; a step that fails gives its reason in one line, and later ones are left out."""
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
    for way in PROCESSORS if "failed" not in row else ():
        row[way] = _branched(loaded, shape, PROCESSORS[way])
    row["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return row


def _loaded(name: str, row: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """Return the network with random weights that can be compared, and its input's shape.

    With some random weights a network makes any rounding larger by orders of magnitude, so that torch does not
    agree with itself: results of another runtime show nothing about it. Torch alone shows that here.
    """
    import torch

    from stretch.network.models.load import load_model

    best = float("inf")
    for seed in SEEDS:
        loaded = load_model(name, weights="none", seed=seed)
        shape = input_of(name, loaded.input_shape)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            one, other = (loaded.module.eval()(value) for value in (x, torch.nextafter(x, x.flip(-1))))
        condition = _distance(other, one)
        if condition < best or seed == SEEDS[0]:
            chosen, best = loaded, condition
            row |= {"seed": seed, "condition": condition}
        if best <= CONDITION:
            break
    return chosen, shape


def _branched(loaded: Any, shape: tuple[int, ...], processors: tuple[str, ...]) -> dict[str, Any]:
    """Return the network branched, written, run by the scheduler, and compared with the branched module and the original."""
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
    """Return the largest difference of any result, relative to the largest of the other's numbers."""
    import torch

    from stretch.network.capture.results import walk_leaves

    ours, theirs = ({key: leaf for key, leaf in _named(value, walk_leaves) if isinstance(leaf, torch.Tensor)} for value in (one, other))
    if len(ours) == len(theirs) == 1:
        # a session gives one result without its name
        ours = dict.fromkeys(theirs, next(iter(ours.values())))
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(float(f"{float((ours[key] - theirs[key]).abs().max() / theirs[key].abs().max()):.1e}") for key in theirs)


def _named(result: Any, keyed: Any) -> list[tuple[str, Any]]:
    """Return the results by name: of a session arrays, or one array; of a module whatever it returns."""
    import numpy as np
    import torch

    if isinstance(result, np.ndarray):
        result = torch.from_numpy(result)
    if isinstance(result, dict) and all(isinstance(item, np.ndarray) for item in result.values()):
        return [(key, torch.from_numpy(item)) for key, item in result.items()]
    return list(keyed(result))


@contextlib.contextmanager
def _step(row: dict[str, Any], name: str) -> Iterator[None]:
    """A step with its seconds; what stops it becomes its ``error``."""
    from predictors.errors import StretchError

    start = time.perf_counter()
    try:
        yield
    except StretchError as error:
        # the folder that the bundle was to be written into is another one each time
        why = re.sub(rf"{tempfile.gettempdir()}/[^/ ]+/", "", f"{error.message}; {error.hint or ''}")
        row |= {"failed": name, "refused": True, "why": why}
    except Exception as error:
        row |= {"failed": name, "refused": False, "why": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    row[f"{name} s"] = round(time.perf_counter() - start, 2)
