"""Operators that keep every element's position: identities at inference, activations, sums, products and quotients."""

from collections.abc import Sequence
from functools import partial

from predictors.channels import new_channels, same_channels, tied_channels
from predictors.kinds import POINTWISE, RECTIFIER, UNLAUNCHED, Kind, kinds, no_weights
from predictors.rows import same_rows
from predictors.shapes import Attrs, Shape, ints
from predictors.slices import Additive, same_slice

_each = partial(Kind, channels=same_channels, rows=same_rows, slices=same_slice, elementwise=True)
_pointwise = partial(_each, traits=frozenset({POINTWISE}))


def _broadcast(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    if len({len(s) for s in ins}) != 1:
        raise ValueError(f"its inputs {ins[0]} and {ins[1]} have different ranks")
    out = []
    for sizes in zip(*ins, strict=True):
        wide = max(sizes)
        if any(s not in (1, wide) for s in sizes):
            raise ValueError(f"its inputs {' and '.join(map(str, ins))} differ")
        out.append(wide)
    return tuple(out)


kinds.register("input")(Kind(lambda ins, attrs: ints(attrs, "shape"), channels=new_channels, min_inputs=0, traits=frozenset({UNLAUNCHED})))
for name in ("dropout", "stochastic_depth", "identity"):
    kinds.register(name)(_each(additive=Additive(), identity=True, traits=frozenset({UNLAUNCHED})))

#: Activations without weights, each with the ONNX node that computes only this activation.
_ACTIVATIONS = {
    **{"silu": (), "clamp": (), "hard_swish": ("HardSwish",), "hard_sigmoid": ("HardSigmoid",), "sigmoid": ("Sigmoid",)},
    **{"tanh": ("Tanh",), "gelu": ("Gelu",), "elu": ("Elu",), "leaky_relu": ("LeakyRelu",), "mish": ("Mish",)},
}
for name, nodes in _ACTIVATIONS.items():
    kinds.register(name)(_pointwise(nodes=nodes))
for name, nodes in (("relu", ("Relu",)), ("relu6", ())):
    kinds.register(name)(_each(nodes=nodes, traits=frozenset({POINTWISE, RECTIFIER})))
kinds.register("prelu")(_pointwise(weights=lambda ins, attrs: {"weight": (ins[0][1],)}))

for name in ("add", "mul", "div"):
    kinds.register(name)(Kind(_broadcast, channels=tied_channels, rows=same_rows, slices=same_slice, min_inputs=2))
for name, weights, shifts in (
    ("add_scalar", no_weights, True),
    ("mul_scalar", no_weights, False),
    ("scale", lambda ins, attrs: {"weight": (ins[0][1],)}, False),
    ("shift", lambda ins, attrs: {"bias": (ins[0][1],)}, True),
):
    kinds.register(name)(_pointwise(weights=weights, additive=Additive(once=shifts)))
