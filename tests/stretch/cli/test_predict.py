"""`stretch predict`: figures per processor."""

import onnx
import pytest
from onnx import TensorProto, helper


@pytest.mark.torch
def test_kernels_of_one_processor_add_up(succeeds):
    args = ("--device", "mi9", "--processor", "gpu", "--precision", "fp32", "--kernels", "--input", "3x64x64")
    data, _ = succeeds("predict", "tiny_resnet", *args, "--json")
    assert data["input"] == [1, 3, 64, 64]
    row = data["processors"]["gpu"]
    assert row["precision"] == "fp32"
    assert sum(kernel["ms"] for kernel in row["kernels"]) == pytest.approx(row["latency_ms"] - row["handover_ms"])
    assert row["handover_ms"] > 0
    # the profile has no times of this processor
    assert any("not fitted to measurements on mi9" in warning for warning in data["warnings"]) != row["calibrated"]
    assert sum(kernel["macs"] for kernel in row["kernels"]) == data["macs"]


@pytest.mark.torch
def test_default_size_is_reported_and_weights_change_no_time(stretch, succeeds, tmp_path):
    args = ("predict", "tiny_resnet", "--device", "pixel6", "--weights")
    data, err = succeeds(*args, "none", "--json")
    assert f"input {'×'.join(map(str, data['input']))}: the usual size" in err
    sized, err = succeeds(*args, "default", "--input", "3x32x32", "--json")
    assert sized["processors"] == data["processors"]
    assert "usual size" not in err
    assert stretch(*args, tmp_path / "lost.pt")[0] == 1


@pytest.mark.representatives(1)
@pytest.mark.torch
@pytest.mark.parametrize(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plot_of_one_processor_is_written(succeeds, tmp_path, ending, begins):
    path = tmp_path / f"roof{ending}"
    succeeds("predict", "tiny_resnet", "--device", "mi9", "--processor", "gpu", "--plot", path)
    assert path.read_bytes().startswith(begins)


@pytest.mark.torch
def test_onnx_file_of_another_exporter_is_predicted(stretch, succeeds, tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph), path)
    args = ("predict", path, "--device", "pixel6", "--json")
    assert succeeds(*args)[0]["processors"]["gpu"]["kernel_count"] == 1
    path.write_bytes(b"damaged")
    code, out, _ = stretch(*args)
    assert (code, "is no ONNX model" in out["error"]) == (1, True)
