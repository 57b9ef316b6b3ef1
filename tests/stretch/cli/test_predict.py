"""`stretch predict`: figures per processor, and refusals before torch is imported."""

import json
import subprocess
import sys

import onnx
import pytest
from onnx import TensorProto, helper

from stretch.cli import app


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        app(["predict", *words])
    return stop.value.code, *capsys.readouterr()


@pytest.mark.torch
def test_kernels_of_one_processor_add_up(capsys):
    code, out, _ = run(
        capsys, "tiny_resnet", "--device", "mi9", "--processor", "gpu", "--precision", "fp32", "--kernels", "--json", "--input", "3x64x64"
    )
    data = json.loads(out)
    assert code == 0
    assert data["input"] == [1, 3, 64, 64]
    row = data["processors"]["gpu"]
    assert row["precision"] == "fp32"
    assert sum(kernel["ms"] for kernel in row["kernels"]) == pytest.approx(row["latency_ms"])
    assert sum(kernel["macs"] for kernel in row["kernels"]) == data["macs"]


@pytest.mark.torch
def test_size_that_nobody_asked_for_is_told_and_weights_change_no_time(capsys, tmp_path):
    code, out, err = run(capsys, "tiny_resnet", "--device", "pixel6", "--weights", "none", "--json")
    assert code == 0
    assert f"input {'×'.join(map(str, json.loads(out)['input']))}: the model's usual size" in err
    again = run(capsys, "tiny_resnet", "--device", "pixel6", "--weights", "default", "--input", "3x32x32", "--json")
    assert json.loads(again[1])["processors"] == json.loads(out)["processors"]
    assert "usual size" not in again[2]
    assert run(capsys, "tiny_resnet", "--device", "pixel6", "--weights", str(tmp_path / "lost.pt"))[0] == 1


@pytest.mark.representatives(1)
@pytest.mark.torch
@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_plot_of_one_processor_is_written(capsys, tmp_path, ending):
    path = tmp_path / f"roof{ending}"
    code, _, _ = run(capsys, "tiny_resnet", "--device", "mi9", "--processor", "gpu", "--plot", str(path))
    assert code == 0
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == ".png" else b"<?xml")


@pytest.mark.torch
def test_onnx_file_of_another_exporter_is_predicted(capsys, tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph), path)
    code, out, _ = run(capsys, str(path), "--device", "pixel6", "--json")
    assert code == 0
    assert json.loads(out)["processors"]["gpu"]["kernel_count"] == 1
    path.write_bytes(b"damaged")
    code, out, _ = run(capsys, str(path), "--device", "pixel6", "--json")
    assert code == 1
    assert "is no ONNX model" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        (("--device", "pixle6"), 3, "unknown device `pixle6`", "did you mean `pixel6`?"),
        (("--device", "pixel6", "--processor", "gpu", "--precision", "int8"), 2, "`gpu` does not run `int8`", "it runs fp32, fp16"),
        (("--device", "pixel6", "--plot", "a.svg"), 2, "--plot draws one processor", "choose one with --processor: cpu, "),
        (("--device", "*", "--kernels"), 2, "--kernels, --plot and --html are of one model on one device", "name both without wildcards"),
    ],
)
def test_wrong_request_is_refused_before_torch_is_imported(words, code, error, hint):
    script = "import sys\nfrom stretch.cli import app\ntry:\n    app(sys.argv[1:])\nfinally:\n    assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", script, "predict", "resnet50", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    answer = json.loads(done.stdout)
    assert answer["error"] == error
    assert answer["hint"].startswith(hint)
