"""Idioms: a few operators that together are one that runtimes have, as their converters recognise them.

Networks write ``x · relu6(x + 3) / 6`` out where their framework had no hard swish
when they were made; converters put the one operator in its place.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from predictors.graph import Op, OpGraph

#: Names that rules may list.
IDIOMS = ("hard_swish", "hard_sigmoid")

#: A sixth is written with as many digits as somebody liked.
_SLACK = 1e-3


@dataclass(frozen=True)
class Recognised:
    """A graph whose idioms are single operators."""

    graph: OpGraph  # The graph; operators keep their names, an idiom has that of its last operator.
    parts: Mapping[str, tuple[str, ...]]  # For each idiom the names of the operators that it stands for, in order.

    def names(self, op: str) -> tuple[str, ...]:
        """Operators of the graph as it was that one of this graph stands for."""
        return self.parts.get(op, (op,))


def recognise(graph: OpGraph, idioms: Collection[str]) -> Recognised:
    """Put single operators in the place of idioms.

    Args:
        idioms: Those to look for, of `IDIOMS`.
    """
    recognised = {idiom[-1].name: idiom for op in graph.ops if (idiom := _idiom(graph, op, idioms))}
    if not recognised:
        return Recognised(graph, {})
    inside = {op.name for idiom in recognised.values() for op in idiom[:-1]}
    ops = []
    for op in graph.ops:
        if op.name in recognised:
            # Four operators: the input counts twice, as a factor and under the clamp.
            kind = "hard_swish" if len(recognised[op.name]) == 4 else "hard_sigmoid"
            ops.append(replace(op, kind=kind, inputs=recognised[op.name][0].inputs, attrs={}))
        elif op.name not in inside:
            ops.append(op)
    return Recognised(
        OpGraph(graph.name, tuple(ops), graph.outputs), {name: tuple(op.name for op in ops) for name, ops in recognised.items()}
    )


def _idiom(graph: OpGraph, start: Op, idioms: Collection[str]) -> tuple[Op, ...]:
    """The operators of the idiom that begins with `start`; empty if none does."""
    if start.kind != "add_scalar" or start.attrs["value"] != 3:
        return ()
    clamp = _reader(graph, start)
    last = _reader(graph, clamp) if clamp and clamp.kind == "relu6" else None
    if clamp is None or last is None:
        return ()
    if _is_sixth(last) and "hard_sigmoid" in idioms:
        return (start, clamp, last)
    sixth = _reader(graph, last)
    if last.kind == "mul" and start.inputs[0] in last.inputs and sixth and _is_sixth(sixth) and "hard_swish" in idioms:
        return (start, clamp, last, sixth)
    return ()


def _reader(graph: OpGraph, op: Op) -> Op | None:
    """The only operator that reads another; None if there are more or it is a result of the graph."""
    readers = graph.consumers[op.name]
    return graph.by_name[readers[0]] if len(readers) == 1 and op.name not in graph.outputs else None


def _is_sixth(op: Op) -> bool:
    value = op.attrs.get("value")
    return op.kind == "mul_scalar" and isinstance(value, int | float) and abs(value * 6 - 1) < _SLACK
