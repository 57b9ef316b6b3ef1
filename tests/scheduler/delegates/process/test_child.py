import io
import json

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.delegates.process.child import Server, serve


def test_a_failure_is_an_answer_and_the_next_command_is_served(bundle_dir):
    commands = [
        {"do": "compile", "model": "nowhere.onnx", "key": 0, "number": 1},
        {"do": "compile", "model": str(bundle_dir / "stem.onnx"), "key": 1, "number": 2},
    ]
    answers = io.BytesIO()
    serve(Server("reference", ()), io.BytesIO(b"".join(json.dumps(c).encode() + b"\n" for c in commands)), answers)
    first, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert "nowhere.onnx" in first["error"]
    assert first["number"] == 1
    assert second == {"number": 2, "inputs": [["x", [1, 3, 8, 8]]], "outputs": [["t0", [1, 6, 8, 8]]]}


def test_unknown_command_is_refused():
    with pytest.raises(StretchError, match="does not know"):
        Server("reference", ()).handle({"do": "dance"})


def test_results_are_written_to_the_shared_files(bundle_dir, tmp_path):
    server = Server("reference", ())
    server.handle({"do": "compile", "model": str(bundle_dir / "stem.onnx"), "key": 3})
    shapes = {"x": (1, 3, 8, 8), "t0": (1, 6, 8, 8)}
    memory = {name: np.memmap(tmp_path / name, np.float32, "w+", shape=shape) for name, shape in shapes.items()}
    described = {name: [{"file": str(tmp_path / name), "offset": 0, "shape": shape, "dtype": "<f4"}] for name, shape in shapes.items()}
    memory["x"][:] = 1
    server.handle({"do": "bind", "key": 4, "compiled": 3, "inputs": described["x"], "outputs": described["t0"]})
    server.handle({"do": "run", "bound": 4})
    assert memory["t0"].any()
