import shutil
import sys

import msgspec
import onnx
import pytest

from predictors.errors import install_line
from scheduler.bundle.load import load_bundle
from scheduler.bundle.preprocessing import Preprocessing
from stretch.export.quantize.images import synthetic_images
from tests.scheduler.bundles import edit, two_branches
from tests.scheduler.tools.runner.built import exported
from tests.stretch.cli.commands import call, follow, succeed


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    return two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp"))


@pytest.fixture
def trained(floats, tmp_path):
    """The bundle marked as trained and planned in int8 on the dsp."""

    def change(data):
        data["weights"]["source"] = "default"
        for sub in data["subgraphs"]:
            sub["planned_precision"] = "int8" if sub["processor"] == "dsp" else "fp16"

    bundle = shutil.copytree(floats, tmp_path / "trained")
    edit(bundle, change)
    return bundle


def test_trained_weights_need_images(stretch, trained, tmp_path):
    code, _, err = stretch("export", trained, "--precision", "dsp=int8", "--out", tmp_path / "out")
    assert code == 2
    assert "int8 needs calibration images" in err


def test_conversion_ends_with_the_command_that_runs_the_bundle(capsys, floats, tmp_path):
    done = succeed(capsys, "export", floats, "--precision", "dsp=int8", "--out", tmp_path / "my out")
    assert done.out.splitlines()[-1].startswith("Next: stretch run ")
    [ran] = follow(capsys, done.out, "--map", "dsp=cpu", "--repeat", 1, "--warmup", 0)
    assert ran.out.startswith("Results are correct: ")


def test_repair_warns_of_subgraphs_that_stay_in_fp32(succeeds, floats, tmp_path):
    data, err = succeeds(
        "export", floats, "--precision", "dsp=int8", "--min-cosine", "0.99999999", "--fp32-fallback", "--out", tmp_path / "out", "--json"
    )
    assert {sub["precision"] for sub in data["subgraphs"]} == {"fp32"}
    assert "`s1.dsp` stays in fp32, on processor cpu" in err
    assert len(data["warnings"]) == 2


LITERT = ("--map", "cpu=litert,dsp=litert")


@pytest.fixture(scope="module")
def tflite(floats, tmp_path_factory):
    from stretch.export.tflite import export_tflite

    pytest.importorskip("ai_edge_litert")
    out = tmp_path_factory.mktemp("tflite") / "bundle"
    export_tflite(load_bundle(floats), out, synthetic_images((1, 3, 8, 8), 16), "synthetic", precision={"dsp": "int8"})
    return out


@pytest.mark.slow
def test_tflite_bundle_is_run_explained_and_verified_through_its_signatures(stretch, succeeds, tflite):
    data, _ = succeeds("run", tflite, *LITERT, "--repeat", 2, "--warmup", 0, "--json")
    assert {p["delegate"] for p in data["processors"].values()} == {"litert"}
    assert data["max_error"] < 0.05
    data, _ = succeeds("explain", tflite, *LITERT, "--json")
    ops = [op for op in data["ops"] if op["subgraph"] == "s1.dsp"]
    assert [op["op"] for op in ops] == ["convert", "QUANTIZE", "CONV_2D", "DEQUANTIZE", "all operators", "convert"]
    assert all(op["delegate"] == "litert" for op in ops)
    assert stretch("verify", tflite)[0] == 0


@pytest.mark.representatives(1)
@pytest.mark.parametrize("verb", [("run", "--repeat", "1", "--warmup", "0"), ("explain",)])
def test_missing_litert_has_the_exit_code_of_a_missing_backend(capsys, monkeypatch, tflite, verb):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    result = call(capsys, verb[0], tflite, *LITERT, *verb[1:])
    assert result.code == 5
    assert install_line("litert") in result.message


@pytest.mark.slow
@pytest.mark.qnn
def test_code_for_a_chip_is_written_and_runs_only_with_trust_code(stretch, succeeds, floats, tmp_path):
    stretch("export", floats, "--precision", "dsp=int8", "--out", tmp_path / "int8")
    data, _ = succeeds("export", tmp_path / "int8", "--format", "qnn", "--chips", "sm8550", "--out", tmp_path / "code", "--json")
    assert [(sub["chip"], sub["name"]) for sub in data["subgraphs"]] == [("sm8550", "s1.dsp"), ("sm8550", "s2.dsp")]
    assert "contexts/sm8550/s1.dsp.onnx" in {file["file"] for file in data["files"]}
    args = ("run", tmp_path / "code", "--repeat", 1, "--warmup", 0, "--dsp-code", "sm8550", "--json")
    code, data, _ = stretch(*args)
    assert (code, "--trust-code" in data["hint"]) == (2, True)
    data, _ = succeeds(*args, "--trust-code")
    assert "simulated" in data["verdict"]


def test_int8_is_calibrated_with_preprocessed_pictures(succeeds, trained, tmp_path):
    """The first scale spans white and black pictures after the stated mean and deviation."""
    image = pytest.importorskip("PIL.Image")
    edit(trained, lambda data: data["model"].update(preprocessing=None))
    stated = {"mean": [0.5, 0.5, 0.5], "std": [0.01, 0.01, 0.01]}
    flags = [arg for key, value in stated.items() for arg in ("--set", f"preprocessing.{key}={value}")]
    (tmp_path / "pictures").mkdir()
    for i in range(8):
        image.new("RGB", (8, 8), (255,) * 3 if i % 2 else (0,) * 3).save(tmp_path / "pictures" / f"{i}.png")
    args = ("export", trained, "--precision", "cpu=int8,dsp=fp32", "--images", tmp_path / "pictures", "--out", tmp_path / "out")
    succeeds(*args, "--min-cosine", 0, "--json", *flags)
    manifest = load_bundle(tmp_path / "out").manifest
    assert manifest.model.preprocessing == msgspec.convert(stated, Preprocessing)
    [first] = [s for s in manifest.subgraphs if s.input == manifest.input]
    model = onnx.load(tmp_path / "out" / first.file)
    values = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    [quantise] = [node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == manifest.input]
    assert values[quantise.input[1]] == pytest.approx((50 + 50) / 255, rel=1e-3)


@pytest.mark.torch
def test_output_says_how_to_import_the_written_code(capsys, tiny_bundle, tmp_path):
    pytest.importorskip("torch")
    result = succeed(capsys, "export", tiny_bundle, "--as", "code", "--out", tmp_path / "net")
    assert "segments" in result.out
    assert result.out.rstrip().endswith(f"from net import load  # in {tmp_path}")


@pytest.mark.torch
def test_sources_of_a_bundles_runner_are_written(succeeds, tmp_path):
    pytest.importorskip("ai_edge_litert")
    exported(tmp_path, two_branches)
    answer, _ = succeeds("export", tmp_path / "bundle", "--as", "cpp", "--out", tmp_path / "runner", "--json")
    assert sorted(path.name for path in (tmp_path / "runner").iterdir()) == answer["files"]
    assert answer["sha256"] in (tmp_path / "runner" / "plan.h").read_text()
