import json
import shutil

import pytest

from scheduler.bundle.load import load_bundle
from tests.stretch.report.html.reading import checked

DESIGNS = {
    "concat": ("tiny_resnet", "--alpha", 100, "--beta", 5, "--set", "join=concat"),
    "project": ("tiny_resnet", "--alpha", 100, "--beta", 5, "--set", "join=project"),
    "sum": ("tiny_mobilenet", "--alpha", 100, "--beta", 5, "--set", "join=sum"),
    "exact": ("tiny_resnet", "--lossless", "--input", "3x64x64"),
    "rows": ("tiny_vgg", "--lossless", "--kinds", "rows", "--input", "3x64x64"),
    "dsp": ("tiny_resnet", "--alpha", 100, "--beta", 5, "--processors", "cpu,dsp"),
    "dsp without the cpu": ("tiny_resnet", "--alpha", 50, "--beta", 50, "--processors", "gpu,dsp"),
}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("args", DESIGNS.values(), ids=DESIGNS)
def test_undisturbed_inference_takes_the_makespan_of_the_plan(succeeds, tmp_path, args):
    device = "mi9" if "dsp" in str(args) else "pixel6"
    more = ("--device", device, "--weights", "none", "--set", "controls=false", "--out", tmp_path / "b", "--json")
    planned, _ = succeeds("branch", *args, *more)
    assert any(len(segment["branches"]) > 1 for segment in planned["segments"])
    data, _ = succeeds("simulate", tmp_path / "b", "--inferences", 3, "--json")
    assert data["makespan_ms"] == pytest.approx(planned["predicted"]["makespan_ms"], rel=1e-9)
    assert data["p50_ms"] == pytest.approx(data["makespan_ms"], rel=1e-9)
    assert data["efficiency"] == pytest.approx(planned["predicted"]["efficiency"], rel=1e-9)
    assert data["ideal_split_ms"] == planned["predicted"]["ideal_split_ms"]


def test_output_has_latencies_busy_processors_and_missed_deadlines(succeeds, bundle_dir):
    out, _ = succeeds("simulate", bundle_dir, "--inferences", 10, "--busy", "gpu=0.9@0:30", "--deadline", 8, "--details")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "over 10 simulated inferences, 90 % of the gpu busy." in " ".join(lines[:2])
    assert "Confidence: simulated; the profile of pixel6 is not fitted to measurements." in lines
    data, _ = succeeds("simulate", bundle_dir, "--inferences", 1, "--json")
    assert f"{data['makespan_ms']:.3g} ms without load" in " ".join(lines)
    assert any(line.startswith("gpu |") for line in lines)
    assert any(line.startswith("inferences per second ") and "one at a time" in line for line in lines)
    assert "of 10 miss the deadline of 8 ms." in " ".join(lines)


def test_trace_has_the_first_64_inferences(succeeds, bundle_dir, tmp_path):
    data, _ = succeeds("simulate", bundle_dir, "--inferences", 100, "--trace", tmp_path / "t.json", "--json")
    assert data["trace"] == str(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["args"]["inference"] for event in spans} == set(range(64))
    steps = [*load_bundle(bundle_dir).manifest.subgraphs, *load_bundle(bundle_dir).manifest.joins]
    assert {event["name"] for event in spans} >= {step.name for step in steps}


HEAT = """
source = "assumed"
resistance_c_per_w = 10.0
time_constant_s = 2.0
ambient_c = 25.0
hysteresis_c = 2.0
power_exponent = 1.0
throttle = [{ at_c = 40.0, speed = 0.5 }]
power_w = { cpu = 3.0, gpu = 3.0 }
"""


@pytest.fixture
def quick(bundles, bundle_dir):
    """A bundle for a device whose GPU is called in less time than a subgraph takes."""
    bundles.edit(bundle_dir, lambda data: data.update(device="d9300"))
    return bundle_dir


@pytest.fixture
def other(bundles, quick, tmp_path):
    """A slower plan of the same network that uses only the cpu."""

    def move(data):
        for entry in data["subgraphs"]:
            entry.update(processor="cpu", predicted_ms=1.5)

    copy = shutil.copytree(quick, tmp_path / "other")
    bundles.edit(copy, move)
    return copy


def test_other_plan_runs_while_a_processor_is_contended_and_the_reason_is_reported(stretch, succeeds, quick, other, tmp_path):
    args = ("simulate", quick, "--or", other, "--inferences", 200, "--busy", "gpu=0.9@100:600", "--trace", tmp_path / "t.json")
    data, _ = succeeds(*args, "--html", tmp_path / "page.html", "--json")
    first = data["decisions"][0]
    expected = f"{first['inference']} {first['at_ms']:.1f} move {other} {first['reason']}"
    assert expected in checked((tmp_path / "page.html").read_text()).text
    assert [plan["bundle"] for plan in data["plans"]] == [str(quick), str(other)]
    assert sum(plan["inferences"] for plan in data["plans"]) == 200
    assert data["plans"][1]["inferences"] > 10
    kinds = [decision["kind"] for decision in data["decisions"]]
    assert (kinds[0], kinds[-1]) == ("move", "return")
    assert 100 < data["decisions"][0]["at_ms"] < 600 < data["decisions"][-1]["at_ms"]
    assert data["decisions"][0]["factors"].keys() == {"gpu"}
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert data["decisions"][0]["reason"] in " ".join(event["name"] for event in events if event.get("cat") == "plan")
    out, _ = succeeds(*args, "--details")
    assert f"then runs {other}; why gpu takes" in " ".join(out.split())
    alone = stretch("simulate", quick, "--inferences", 200, "--busy", "gpu=0.9@100:600", "--json")[1]
    assert data["elapsed_ms"] < alone["elapsed_ms"]
    assert (alone["decisions"], [plan["inferences"] for plan in alone["plans"]]) == ([], [200])


def test_second_bundle_shares_the_processors_and_has_its_own_latencies(stretch, succeeds, quick, tmp_path):
    alone = stretch("simulate", quick, "--json")[1]
    data, _ = succeeds("simulate", quick, "--beside", f"{quick}@periodic:20", "--beside", quick, "--json")
    first, second = data["beside"]
    assert (first["arrivals"], second["arrivals"]) == ("periodic:20", None)
    assert first["inferences"] == pytest.approx(data["elapsed_ms"] / 20, abs=2)
    assert second["p50_ms"] > second["makespan_ms"] == alone["makespan_ms"]
    assert data["p50_ms"] > 1.3 * alone["p50_ms"]
    _, out, _ = stretch("simulate", quick, "--beside", quick, "--trace", tmp_path / "t.json", "--details")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    groups = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert groups == ["simulated on d9300", f"other bundle, 1: {quick}"]
    assert f"\n{quick}" in out


def test_chip_heats_up_and_slows_down(succeeds, bundle_dir, tmp_path):
    (tmp_path / "heat.toml").write_text(HEAT)
    args = ("simulate", bundle_dir, "--heat", tmp_path / "heat.toml")
    data, _ = succeeds(*args, "--inferences", 1000, "--json")
    heat = data["heat"]
    assert (heat["source"], heat["slowest"]) == ("assumed", 0.5)
    assert heat["hottest_c"] >= 40
    assert heat["first_tenth_ms"] < heat["last_tenth_ms"]
    assert data["energy_mj"] > 0
    assert "From 25.0 to " in succeeds(*args, "--details")[0]


def test_bundle_on_another_device_is_simulated_without_the_figures_of_its_plan(succeeds, bundle_dir):
    data, _ = succeeds("simulate", bundle_dir, "--device", "mi9", "--json")
    assert (data["device"], data["planned_for"], data["efficiency"], data["ideal_split_ms"]) == ("mi9", "pixel6", None, None)
    assert data["makespan_ms"] != succeeds("simulate", bundle_dir, "--json")[0]["makespan_ms"]
    assert data["energy_mj"] > 0


@pytest.mark.parametrize("prefer", ["latency", "energy", "deadline"])
def test_policy_follows_the_preferred_criterion(stretch, succeeds, bundle_dir, prefer):
    data, _ = succeeds("simulate", bundle_dir, "--or", "cpu", "--or", "gpu", "--prefer", prefer, "--deadline", 1000, "--json")
    fastest = min(data["plans"], key=lambda plan: plan["makespan_ms"])
    most_run = max(data["plans"], key=lambda plan: plan["inferences"])
    assert (most_run == fastest) or prefer != "latency"
    if prefer == "energy":
        assert data["energy_mj"] <= stretch("simulate", bundle_dir, "--or", "cpu", "--or", "gpu", "--json")[1]["energy_mj"]
