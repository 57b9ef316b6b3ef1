import os
import subprocess
import sys

import pytest
from onnx import TensorProto, helper

from tests.scheduler import bundles

PLAIN = os.environ | {"NN_STRETCH_SYSTEM": "plain"}


def python(code, *words):
    """What a program prints on a system that has nothing of Linux's."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], env=PLAIN, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_bundle_is_verified_and_runs_without_what_only_linux_has(tmp_path):
    bundle = bundles.two_branches(tmp_path / "bundle")
    code = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from predictors import system\nfrom scheduler.bundle.load import load_bundle\nfrom scheduler.cores import available_cores\n"
        "from scheduler.runtime.session import Session\n"
        "assert system.fcntl is system.resource is system.affinity() is system.load_average() is None\n"
        "x = np.ones((1, 3, 8, 8), np.float32)\n"
        "with Session(load_bundle(Path(sys.argv[1]), check_hashes=True)) as session:\n    print(float(session(x).sum()), len(available_cores()))\n"
    )
    total, cores = python(code, bundle).split()
    with_linux = subprocess.run([sys.executable, "-c", code.replace("assert", "0 and"), bundle], capture_output=True, text=True, check=True)
    assert float(total) == pytest.approx(float(with_linux.stdout.split()[0]), rel=1e-5)
    assert int(cores) == os.cpu_count()


def test_command_line_starts_and_runs_a_bundle(tmp_path):
    bundle = bundles.two_branches(tmp_path / "bundle")
    words = ("from stretch.cli import app; app()", "run", bundle, "--repeat", "2", "--warmup", "0", "--json")
    assert '"source": "measured"' in python(*words)


def test_inference_of_shapes_that_ends_its_process_is_a_sentence_there_too(tmp_path):
    import onnx

    value = helper.make_tensor_value_info
    node = helper.make_node("Split", ["x"], ["a", "b", "c"], axis=0, num_outputs=2)
    relu = helper.make_node("Relu", ["x"], ["y"])
    for name, nodes, outputs in (("bad", [node], "abc"), ("good", [relu], "y")):
        graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, (4, 2))], [value(o, TensorProto.FLOAT, None) for o in outputs])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / f"{name}.onnx")
    code = (
        "import sys, onnx\nfrom predictors.errors import StretchError\nfrom predictors.formats.inference import infer_shapes\n"
        "try:\n    print(len(infer_shapes(onnx.load(sys.argv[1]), 'it')))\nexcept StretchError as error:\n    print(error.message)\n"
    )
    assert python(code, tmp_path / "good.onnx") == "2"
    assert "shapes of it" in python(code, tmp_path / "bad.onnx")
