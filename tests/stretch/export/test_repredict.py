"""Predictions of a bundle in other precisions, compared with the planner for the same design and precisions."""

import json

import msgspec
import pytest

from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from scheduler.bundle.load import load_bundle
from scheduler.formats.onnx import open_onnx
from scheduler.simulate.clock import predicted_trace
from stretch.export.precision import export_precision
from stretch.export.quantize.images import synthetic_images
from stretch.export.repredict import repredict, runs_in
from stretch.planning.config import PlanConfig
from stretch.planning.cost.compare import NO_CLEAR_WINNER
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.plan import evaluate
from tests.stretch.cli.commands import call

pytestmark = pytest.mark.torch

MI9 = load_device("mi9")
WANTED = {"cpu": "fp32", "dsp": "int8"}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A bundle planned in int8 on both processors, written in fp32."""
    pytest.importorskip("torch")
    from stretch.api import branch

    out = tmp_path_factory.mktemp("planned") / "bundle"
    branch("tiny_resnet", "mi9", out=out, weights="none", config=PlanConfig(processors=("cpu", "dsp"), alpha=100, beta=3))
    return out


@pytest.fixture(scope="module")
def exported(planned, tmp_path_factory):
    """The planned bundle with the CPU's files in fp32 and the DSP's files in int8."""
    out = tmp_path_factory.mktemp("exported") / "bundle"
    export_precision(load_bundle(planned), out, WANTED, synthetic_images((1, 3, 32, 32), 8), "synthetic")
    return out


SAME = ("makespan_ms", "best_single_ms", "best_single_processor", "best_single_precision", "speedup", "whole_graph_ms",
        "whole_graph_processor", "operator_split_ms", "ideal_split_ms", "ideal_fraction", "efficiency", "communication_ms")  # fmt: skip


@pytest.mark.slow
def test_figures_equal_the_planner_in_the_new_precisions(planned, exported):
    before, after = load_bundle(planned).manifest.predicted, load_bundle(exported).manifest.predicted
    # the planner's figures for the bundle's design in these precisions
    graph = open_onnx(exported / "original.onnx").graph
    design = msgspec.convert(load_bundle(exported).manifest.design, BranchDesign)
    expected = evaluate(graph, MI9, design, PlanConfig(processors=("cpu", "dsp"), precision=WANTED))
    for key in SAME:
        value = expected.predicted.to_json()[key]
        # a trace rounds to nanoseconds
        assert after[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5, abs=1e-6)), key
    # the constant of an inference is about the same in both
    assert after["makespan_ms"] > 1.02 * before["makespan_ms"]
    assert before.keys() <= after.keys()
    compared = {control.name: control for control in expected.recommendation.compared}
    for item in after["comparisons"]:
        if item["name"] in compared and item["name"] != "sequential_same_macs":
            control = compared[item["name"]]
            assert (item["ratio"], item["low"], item["high"]) == pytest.approx((control.ratio, control.low, control.high), rel=1e-4)


def test_subgraphs_alternatives_and_trace_are_predicted_for_the_files(exported):
    manifest = load_bundle(exported).manifest
    predictor = LatencyPredictor(MI9)
    for sub in manifest.subgraphs:
        graph = open_onnx(exported / sub.file).graph
        assert (sub.precision, sub.planned_precision) == (WANTED[sub.processor],) * 2
        assert sub.predicted_ms == predictor.predict(graph, sub.processor, sub.precision).computing_ms
        assert sub.alternatives[sub.processor].ms == sub.predicted_ms
        # the DSP has no fp32, so its alternative is predicted in int8
        assert sub.alternatives["dsp"].ms == predictor.predict(graph, "dsp", "int8").computing_ms
        assert sub.alternatives["cpu"].ms == predictor.predict(graph, "cpu", sub.precision).computing_ms
    assert manifest.predicted["makespan_ms"] == predicted_trace(manifest, MI9).makespan_ms


def test_file_in_an_unsupported_precision_is_predicted_in_the_planned_precision(planned):
    first = {sub.processor: sub for sub in reversed(load_bundle(planned).manifest.subgraphs)}
    precisions = {name: (sub.precision, sub.planned_precision, runs_in(MI9.processor(name), sub)) for name, sub in first.items()}
    assert precisions == {"dsp": ("fp32", "int8", "int8"), "cpu": ("fp32", "int8", "fp32")}


def test_bundle_without_controls_has_no_speedup_and_without_a_profile_no_prediction(planned):
    bundle = load_bundle(planned)
    manifest = repredict(msgspec.structs.replace(bundle.manifest, controls={}, control_macs={}), bundle.file)
    assert manifest.predicted["speedup"] is manifest.predicted["best_single_ms"] is manifest.predicted["sequential_same_macs_ms"] is None
    assert manifest.predicted["whole_graph_ms"] > 0
    assert manifest.recommended == NO_CLEAR_WINNER
    json.dumps(manifest.predicted, allow_nan=False)
    manifest = repredict(msgspec.structs.replace(bundle.manifest, device="gone"), bundle.file)
    assert (manifest.predicted, manifest.recommended) == ({}, NO_CLEAR_WINNER)
    assert all(sub.predicted_ms is None and not sub.alternatives for sub in manifest.subgraphs)


def test_explain_predicts_the_precisions_of_the_files(planned, exported, capsys):
    predictor = LatencyPredictor(MI9)
    for path in (planned, exported):
        data = json.loads(call(capsys, "explain", path, "--device", "mi9", "--json").out)
        for sub in data["subgraphs"]:
            entry = load_bundle(path).subgraph(sub["name"])
            estimate = predictor.predict(open_onnx(path / entry.file).graph, entry.processor, WANTED[entry.processor])
            assert sub["ms"] == pytest.approx(estimate.computing_ms)
    data = json.loads(call(capsys, "explain", planned, "--device", "mi9", "--json").out)
    assert "in fp32, which the file is; planned was int8" in data["processors"]["cpu"]["reason"]
    assert "in int8, because it does not run fp32, the precision of the file" in data["processors"]["dsp"]["reason"]
