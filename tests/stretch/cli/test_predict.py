"""`stretch predict`: figures per processor, and refusals before torch is imported."""

import json
import subprocess
import sys

import pytest

from predictors.devices import load_device
from predictors.errors import UsageError
from stretch.cli import app
from stretch.cli.predict import parse_input


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        app(["predict", *words])
    return stop.value.code, *capsys.readouterr()


@pytest.mark.torch
def test_json_has_every_processor_and_core_set(capsys):
    code, out, err = run(capsys, "tiny_resnet", "--device", "mi9", "--json")
    data = json.loads(out)
    assert code == 0
    assert set(data["processors"]) == set(load_device("mi9").variants)
    for row in data["processors"].values():
        assert row["low_ms"] < row["latency_ms"] < row["high_ms"]
        assert (row["calibrated"], row["source"], row["kernels"]) == (False, "predicted", [])
    assert "derived from specifications" in err
    assert data["warnings"]


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
def test_precision_alone_selects_the_processors_that_run_it(capsys):
    _, out, _ = run(capsys, "tiny_resnet", "--device", "mi9", "--precision", "fp16", "--json")
    assert set(json.loads(out)["processors"]) == {"gpu"}


@pytest.mark.torch
def test_table_for_people_lists_processors_and_kernels(capsys):
    code, out, _ = run(capsys, "tiny_resnet", "--device", "pixel6", "--processor", "cpu", "--kernels")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("tiny_resnet on pixel6: ")
    assert any(line.startswith("cpu ") and "fp32" in line for line in lines)
    assert any("conv" in line and "compute" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        (("--device", "pixel7"), 3, "unknown device `pixel7`", "did you mean `pixel6`?"),
        (("--device", "pixel6", "--processor", "gpuu"), 3, "unknown processor of pixel6 `gpuu`", "did you mean `gpu`?"),
        (("--device", "pixel6", "--processor", "gpu", "--precision", "int8"), 2, "`gpu` does not run `int8`", "it runs fp32, fp16"),
        (("--device", "pixel6", "--precision", "fp8"), 2, "no processor of pixel6 runs `fp8`", "choose fp32, fp16 or int8"),
        (("--device", "pixel6", "--input", "224"), 2, "the input shape `224` is not channels, height and width", "write it as 3x224x224"),
    ],
)
def test_wrong_request_is_refused_before_torch_is_imported(words, code, error, hint):
    script = "import sys\nfrom stretch.cli import app\ntry:\n    app(sys.argv[1:])\nfinally:\n    assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", script, "predict", "resnet50", *words, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    told = json.loads(done.stdout)
    assert (told["error"], told["hint"]) == (error, hint)


@pytest.mark.parametrize("text", ["", "3x224", "3x224x224x1", "3x0x224", "3x-1x224", "axbxc", "3x99999x3", "3x²x4"])
def test_input_that_is_not_three_sizes_is_refused(text):
    with pytest.raises(UsageError, match="is not channels, height and width"):
        parse_input(text)


def test_input_may_be_written_with_either_case():
    assert parse_input("3X32x64") == (1, 3, 32, 64)
    assert parse_input(None) is None
