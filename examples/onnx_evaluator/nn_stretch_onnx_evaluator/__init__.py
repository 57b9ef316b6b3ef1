"""Subgraphs on the evaluator of the onnx package: slow, and the shortest delegate there can be."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx.reference import ReferenceEvaluator

from scheduler.delegates import Compiled, Delegate, Invocation
from scheduler.delegates.base import Array
from scheduler.formats.onnx import open_onnx


class Evaluation(Invocation):
    """One subgraph tied to its buffers."""

    def __init__(self, evaluator: ReferenceEvaluator, names: Sequence[str], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._evaluator = evaluator
        self._feed = dict(zip(names, inputs, strict=True))
        self._outputs = outputs

    def run(self) -> None:
        """Evaluate the subgraph and copy what it gives into the output buffers."""
        for buffer, value in zip(self._outputs, self._evaluator.run(None, self._feed), strict=True):
            np.copyto(buffer, value)


class Evaluated(Compiled):
    """A subgraph as the evaluator holds it."""

    def __init__(self, model: Path) -> None:
        super().__init__(*open_onnx(model).ends)
        self._evaluator = ReferenceEvaluator(str(model))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Evaluation:
        """Tie it to buffers."""
        self.check(inputs, outputs)
        return Evaluation(self._evaluator, list(self.inputs), inputs, outputs)


class OnnxEvaluator(Delegate):
    """Runs subgraphs with `onnx.reference`."""

    summary = "the evaluator of the onnx package (example of a plug-in)"

    def compile(self, model: Path) -> Evaluated:
        """Load the file."""
        return Evaluated(model)
