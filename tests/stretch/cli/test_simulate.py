"""`stretch simulate`: a bundle on its device without the device."""

import json

import pytest

from scheduler.bundle.load import load_bundle

DESIGNS = {
    "concat": ("tiny_resnet", "--alpha", 5, "--beta", 5, "--join", "concat"),
    "project": ("tiny_resnet", "--alpha", 5, "--beta", 5, "--join", "project"),
    "sum": ("tiny_mobilenet", "--alpha", 5, "--beta", 5, "--join", "sum"),
    "exact": ("tiny_resnet", "--lossless", "--input", "3x64x64"),
    "rows": ("tiny_vgg", "--lossless", "--kinds", "rows", "--input", "3x64x64"),
    "dsp": ("tiny_resnet", "--alpha", 5, "--beta", 5, "--processors", "cpu,dsp"),
}


@pytest.mark.torch
@pytest.mark.parametrize("words", DESIGNS.values(), ids=DESIGNS)
def test_undisturbed_inference_takes_the_makespan_of_the_plan(stretch, tmp_path, words):
    device = "mi9" if "dsp" in str(words) else "pixel6"
    code, planned, err = stretch(
        "branch", *words, "--device", device, "--weights", "none", "--no-controls", "--out", tmp_path / "b", "--json"
    )
    assert code == 0, err
    assert any(len(segment["branches"]) > 1 for segment in planned["segments"])
    code, data, err = stretch("simulate", tmp_path / "b", "--inferences", 3, "--json")
    assert code == 0, err
    assert data["makespan_ms"] == pytest.approx(planned["predicted"]["makespan_ms"], rel=1e-9)
    assert data["p50_ms"] == pytest.approx(data["makespan_ms"], rel=1e-9)
    assert data["efficiency"] == pytest.approx(planned["predicted"]["efficiency"], rel=1e-9)
    assert data["ideal_split_ms"] == planned["predicted"]["ideal_split_ms"]


def test_people_read_latencies_busy_processors_and_missed_deadlines(stretch, bundle_dir):
    code, out, _ = stretch("simulate", bundle_dir, "--inferences", 10, "--busy", "gpu=0.9@0:30", "--deadline", 8)
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "tiny on pixel6, whose profile is not fitted to measurements; simulated, nothing was measured"
    assert any(line.startswith("undisturbed 5.") for line in lines)
    assert any(line.startswith("gpu |") for line in lines)
    assert any(line.startswith("10 inferences, one at a time, in ") for line in lines)
    assert any(line.endswith("miss the deadline of 8 ms") for line in lines)


def test_same_words_print_the_same_numbers(stretch, bundle_dir):
    words = ("simulate", bundle_dir, "--inferences", 30, "--jitter", 0.1, "--arrivals", "poisson:120", "--in-flight", 3, "--json")
    assert stretch(*words, "--seed", 3) == stretch(*words, "--seed", 3) != stretch(*words, "--seed", 4)


def test_timeline_holds_the_first_inferences(stretch, bundle_dir, tmp_path):
    code, data, _ = stretch("simulate", bundle_dir, "--inferences", 100, "--trace", tmp_path / "t.json", "--json")
    assert code == 0
    assert data["trace"] == str(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["args"]["inference"] for event in spans} == set(range(64))
    steps = [*load_bundle(bundle_dir).manifest.subgraphs, *load_bundle(bundle_dir).manifest.joins]
    assert {event["name"] for event in spans} >= {step.name for step in steps}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--busy", "gqu=0.5@0:1"], 3, "did you mean `gpu`?"),
        (["--busy", "gpu=nan@0:1"], 2, "takes nan of it, which is no share"),
        (["--busy", "gpu=-0.5@0:1"], 2, "takes -0.5 of it, which is no share"),
        (["--busy", "gpu=1.01@0:1"], 2, "takes 1.01 of it, which is no share"),
        (["--busy", "gpu=0.5@9:1"], 2, "ends at 1 ms, and begins at 9 ms"),
        (["--busy", "gpu=0.6@0:9,gpu=0.6@5:9"], 2, "loads take 1.2 of gpu from 5 ms on"),
        (["--inferences", 0], 2, "--inferences"),
        (["--in-flight", 0], 2, "--in-flight"),
        (["--jitter", "nan"], 2, "a jitter of nan makes no sense"),
        (["--seed", -1], 2, "--seed"),
        (["--arrivals", "periodic:0"], 2, "requests cannot come as `periodic:0` says"),
        (["--deadline", "nan"], 2, "a deadline of nan ms makes no sense"),
        (["--trace", "/nowhere/t.json"], 1, "cannot write the trace"),
    ],
)
def test_bad_request_is_told_in_a_sentence(stretch, bundle_dir, words, code, told):
    got, out, err = stretch("simulate", bundle_dir, *words)
    assert (got, out) == (code, "")
    assert told in err
    assert "Traceback" not in err


def test_damaged_bundle_is_refused(stretch, bundle_dir):
    with (bundle_dir / "s1.gpu.onnx").open("ab") as file:
        file.write(b"more")
    code, _, err = stretch("simulate", bundle_dir)
    assert code == 1
    assert "s1.gpu.onnx" in err


def test_bundle_of_a_device_that_is_gone_is_refused(stretch, bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda data: data.update(device="pixel66"))
    code, _, err = stretch("simulate", bundle_dir)
    assert code == 3
    assert "pixel66" in err
