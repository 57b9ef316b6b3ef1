import numpy as np
import pytest

from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from stretch.export.precision import export_precision
from stretch.export.tflite.aot_compiler import compile_signatures
from stretch.export.tflite.aot_simulator import Case, simulate
from stretch.export.tflite.bundle import write_tflite
from stretch.quantize.images import synthetic_images
from stretch.quantize.replay import replay, runner
from tests.scheduler.bundles import two_branches

pytestmark = pytest.mark.qnn
pytest.importorskip("ai_edge_litert")


def last(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


@pytest.mark.slow
def test_code_computes_what_the_int8_subgraphs_compute(tmp_path):
    floats = load_bundle(two_branches(tmp_path / "floats", processors=("cpu", "dsp")))
    export_precision(floats, tmp_path / "int8", {"dsp": "int8"}, synthetic_images((1, 3, 8, 8), 8), "synthetic")
    int8 = load_bundle(tmp_path / "int8")
    (tmp_path / "model.tflite").write_bytes(write_tflite(int8))
    names = ["s1.dsp", "s2.dsp"]
    code = compile_signatures(tmp_path / "model.tflite", names, "sm8450", tmp_path / "out.tflite")
    tensors = replay(int8.manifest, {s.name: runner(str(int8.file(s.file))) for s in int8.manifest.subgraphs}, random_input(int8))
    ends = {name: (last(tensors[int8.subgraph(name).input]), last(tensors[int8.subgraph(name).output])) for name in names}
    got = simulate({name: Case(code[name], x, y.shape) for name, (x, y) in ends.items()}, "sm8450")
    for name, (_, y) in ends.items():
        assert np.abs(got[name] - y).max() < 0.02 * np.abs(y).max()
    # Another input gives another result: the numbers come from the code.
    x, y = ends["s1.dsp"]
    assert np.abs(simulate({"s1.dsp": Case(code["s1.dsp"], -x, y.shape)}, "sm8450")["s1.dsp"] - y).max() > 0.2 * np.abs(y).max()
