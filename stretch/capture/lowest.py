"""Padding by −∞, which frameworks write before a max pooling whose sides differ: it becomes the pooling's own padding."""

from collections.abc import Sequence
from dataclasses import replace

from predictors.graph import Op
from predictors.shapes import ints
from stretch.operators.move import LOWEST
from stretch.operators.settings import Refusal


def folded(ops: Sequence[Op]) -> list[Op]:
    """Operators without padding by −∞: no maximum is in it, so the pooling that reads it pads as much more.

    Args:
        ops: Operators in topological order, their shapes not known yet.
    """
    pads = {op.name: op for op in ops if LOWEST in op.attrs}
    found = []
    for op in ops:
        if op.name in pads:
            continue
        pad = next((pads[name] for name in op.inputs if name in pads), None)
        if pad is not None:
            if op.kind != "max_pool" or op.attrs["ceil_mode"]:
                raise Refusal(
                    f"padding by minus infinity is read by `{op.name}` ({op.kind}), and only max pooling that rounds down takes it"
                )
            both = tuple(a + b for a, b in zip(ints(pad.attrs, "padding"), ints(op.attrs, "padding"), strict=True))
            if any(side > size // 2 for side, size in zip(both, 2 * ints(op.attrs, "kernel"), strict=True)):
                raise Refusal(f"`{op.name}` reads an image padded by minus infinity further than half of its window")
            op = replace(op, inputs=pad.inputs, attrs={**op.attrs, "padding": both})
        found.append(op)
    return found
