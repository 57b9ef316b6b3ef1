"""Recurrent layers: steps over a sequence whose length is an axis of what they read."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.formats.onnx.shapes.node import REALS, Cost, KnownTensor, Rule, Shape, ShapeNode, need

#: Directions that a layer may run in, and how many these are.
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@dataclass(frozen=True)
class _Layer:
    """A kind of recurrent layer."""

    gates: int  # Products with what arrives that each step makes.
    states: int  # Tensors that are handed from step to step.

    def __call__(self, node: ShapeNode) -> Cost:
        """Shapes of all steps' outputs, and of the last states (ONNX operators, LSTM, GRU and RNN)."""
        x = node.tensor(0, REALS)
        need(len(x.shape) == 3, f"its input has the shape {list(x.shape)}")
        need(not node.whole("layout", 0), "its batch comes first")
        direction = node.word("direction", "forward")
        need(direction in _DIRECTIONS, f"its direction is `{direction[:20]}`")
        (steps, batch, width), ways, size = x.shape, _DIRECTIONS[direction], node.whole("hidden_size", 0)
        need(size > 0, f"its hidden_size is {size}")
        state = (ways, batch, size)
        self._check(node, width, ways, size, state)
        need(1 <= node.results <= 1 + self.states, f"it has {node.results} results")
        outputs = (KnownTensor((steps, ways, batch, size), x.type), *[KnownTensor(state, x.type)] * self.states)
        return Cost(outputs[: node.results], steps * batch * ways * self.gates * size * (width + size))

    def _check(self, node: ShapeNode, width: int, ways: int, size: int, state: Shape) -> None:
        """Refuse weights that do not fit what arrives and each other."""
        rows = self.gates * size
        need(node.tensor(1, REALS).shape == (ways, rows, width), f"its weights have the shape {list(node.shape(1))}")
        need(node.tensor(2, REALS).shape == (ways, rows, size), f"its recurrent weights have the shape {list(node.shape(2))}")
        need(node.optional(4) is None, "its sequences have lengths of their own")
        peepholes = {5 + self.states: (ways, 3 * size)} if self.states == 2 else {}
        wanted = {3: (ways, 2 * rows), **{5 + i: state for i in range(self.states)}, **peepholes}
        need(len(node.inputs) <= 1 + max(wanted), f"it has {len(node.inputs)} inputs")
        for i, shape in wanted.items():
            tensor = node.optional(i)
            need(tensor is None or (tensor.type in REALS and tensor.shape == shape), f"its input {i} is not of the shape {list(shape)}")


RULES: Mapping[str, Rule] = {"GRU": _Layer(3, 1), "LSTM": _Layer(4, 2), "RNN": _Layer(1, 1)}
