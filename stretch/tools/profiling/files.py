"""Random networks as ONNX files, with random weights that keep activations in a realistic range."""

import json
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from math import prod, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.shapes import Shape

# What a program on a board asks of the machine that started it: files that only that machine can make.

#: Names the descriptors that questions are written to and answers are read from, as the agent sets it.
ASKS = "NN_STRETCH_ASKS"


def ask_for_file(path: Path, question: str) -> None:
    """Have a file made by the machine that started this program, and wait for it."""
    questions, answers = map(int, os.environ[ASKS].split(","))
    line = json.dumps({"file": str(path.absolute()), "question": question}).encode() + b"\n"
    try:
        while line:
            line = line[os.write(questions, line) :]
        answer = b""
        while not answer.endswith(b"\n"):
            more = os.read(answers, 1 << 16)
            if not more:
                raise StretchError("the machine that started this does not answer any more")
            answer += more
    except OSError as error:
        raise StretchError(f"the machine that started this does not answer any more: {error.strerror}") from error
    if problem := json.loads(answer).get("problem"):
        raise StretchError(str(problem))


Array = NDArray[np.float32]

#: Length of the random sequence that weights repeat, larger than a core's caches.
_POOL = 1 << 20

#: Maximum size of weights on a board, in bytes.
_MOST = 1 << 30


def write_network(graph: OpGraph, path: Path) -> Path:
    """Write a graph with random weights; returns the path.

    On a board, which has no torch, the connected machine creates the file.
    """
    if ASKS in os.environ:
        ask_for_file(path, graph.to_json().decode())
        return path
    from stretch.export.onnx import save_onnx, to_onnx

    save_onnx(to_onnx(graph, make_weights(graph)), path)
    return path


def answer_board(question: str) -> bytes:
    """Contents of the file that a board requests in `write_network`."""
    graph = OpGraph.from_json(question)
    if weight_bytes(graph) > _MOST:
        raise StretchError(f"the network `{graph.name}` has weights of more than {_MOST} bytes")
    with tempfile.TemporaryDirectory() as folder:
        return write_network(graph, Path(folder) / "network.onnx").read_bytes()


def make_weights(graph: OpGraph) -> dict[str, dict[str, Array]]:
    """Weights that preserve the scale of activations (He et al. 2015), as denormals and infinities would change the times."""
    weights: dict[str, dict[str, Array]] = {}
    for op in graph.ops:
        shapes = graph.op_weights(op)
        if shapes:
            weights[op.name] = {key: _weight(key, shape) for key, shape in shapes.items()}
    return weights


def _weight(key: str, shape: Shape) -> Array:
    if key == "running_var" or (key == "weight" and len(shape) == 1):
        return np.ones(shape, np.float32)
    if key in ("bias", "running_mean"):
        return np.full(shape, 0.01, np.float32)
    return np.resize(_pool(), shape) * np.float32(sqrt(2 / prod(shape[1:])))


@cache
def _pool() -> Array:
    return np.random.default_rng(0).standard_normal(_POOL, np.float32)


def weight_bytes(graph: OpGraph) -> int:
    """Size of a graph's weights in its file, in bytes."""
    shapes: list[Mapping[str, Shape]] = [graph.op_weights(op) for op in graph.ops]
    return sum(4 * prod(shape) for some in shapes for shape in some.values())
