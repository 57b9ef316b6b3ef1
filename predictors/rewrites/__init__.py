"""Replacements of operators that a processor lacks or is slow at, one file per family.

Most rewrites make another network, to be calibrated or trained: paper 003 (section 6) removes squeeze-and-excitation from
EfficientNet and gives its CPU branch ReLU6 instead of Swish. Those in `exact` compute the same in other operators. A
rewrite is written ``WHAT=BY``, such as ``silu=relu6``.
"""

from collections.abc import Callable, Sequence

from predictors.graph import OpGraph
from predictors.registry import Registry, import_modules

#: Gives a graph whose other operators keep their names, inputs and weights.
Rewrite = Callable[[OpGraph], OpGraph]

rewrites: Registry[Rewrite] = Registry("rewrite")

#: Rewrites that keep a network's results. They apply to operators that are scaled already, so that channels and weights stay the original's.
exact: Registry[Rewrite] = Registry("exact rewrite")


def apply_rewrites(graph: OpGraph, names: Sequence[str]) -> tuple[OpGraph, tuple[str, ...]]:
    """A graph after some rewrites, one after the other.

    Args:
        names: Such as ``silu=relu6``.

    Returns:
        The new graph, and those of the names that changed something.

    Raises:
        UnknownNameError: If there is no such rewrite.
    """
    done = []
    for name in names:
        changed = rewrites.get(name)(graph)
        if changed is not graph:
            graph = changed
            done.append(name)
    return graph, tuple(done)


def inexact_rewrites(names: Sequence[str]) -> tuple[str, ...]:
    """Return the rewrites among `names` that change a network's results."""
    return tuple(name for name in names if name not in exact)


def apply_exact_rewrites(graph: OpGraph, names: Sequence[str]) -> tuple[OpGraph, tuple[str, ...]]:
    """A graph after the exact ones of some rewrites, and those of them that changed something; the graph keeps the answer."""
    key = tuple(dict.fromkeys(name for name in names if name in exact))
    cached: dict[tuple[str, ...], tuple[OpGraph, tuple[str, ...]]] = vars(graph).setdefault("_laid_out", {})
    if key not in cached:
        cached[key] = apply_rewrites(graph, key)
    return cached[key]


import_modules(__name__, __path__)
