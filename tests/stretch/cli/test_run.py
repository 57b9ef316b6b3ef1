"""Verbs that run a bundle or files, and results side by side: `run`, `explain`, `compare`, `verify`, `profile tune`."""

import json
import os
import re

import numpy as np
import onnx
import pytest

from predictors.errors import StretchError
from scheduler.delegates import OpenCLDelegate
from stretch.report.compared import ComparedRow, refused_row, rows_of_file, warnings_of
from tests.scheduler.bundles import edit
from tests.scheduler.foreign_files import conv_onnx
from tests.stretch.cli.commands import LOOSE, call, succeed
from tests.stretch.report.html.reading import checked


def test_answer_has_ratios_with_intervals_checked_results_throughput_and_a_trace(stretch, bundle_dir, tmp_path):
    file = tmp_path / "t.json"
    args = ("--repeat", 6, "--warmup", 1, "--in-flight", 2, "--trace", file, "--json")
    code, data, _ = stretch("run", bundle_dir, *args)
    assert (code, data["runs"], data["source"], data["trace"]) == (0, 6, "measured", str(file))
    assert data["processors"]["gpu"]["stand_in"] is True
    sequential = [data["sequential"], data["sequential_same_macs"]]
    assert data["best_sequential"] == min(sequential, key=lambda item: item["median_ms"])
    names = [item["name"] for item in data["comparisons"]]
    assert names[0] == data["sequential"]["name"]
    assert any(name.startswith("same net as one graph") for name in names)
    assert all(item["low"] <= item["ratio"] <= item["high"] for item in data["comparisons"])
    assert (
        data["ratio"]
        == pytest.approx(data["sequential"]["median_ms"] / data["median_ms"])
        == pytest.approx(data["comparisons"][0]["ratio"])
    )
    assert data["winner"] in ("branched", "sequential", None)
    assert (data["winner"] is None) == ("too close to call" in data["verdict"] and "loses" not in data["verdict"])
    assert data["efficiency"] <= 1
    assert data["equal_precision"] is True
    assert (data["check"]["against"], data["check"]["tensors"]) == ("model.onnx", 7)
    assert max(data["max_error"], data["check"]["error"]) < 1e-5 < data["check"]["tolerance"]
    rates = data["throughput"]["contestants"]
    assert rates[0]["name"] == "branched, 2 in flight"
    assert data["throughput"]["over_one_core"] == pytest.approx(rates[0]["per_second"] / rates[2]["per_second"])
    events = json.loads(file.read_text())["traceEvents"]
    groups = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert list(groups) == ["measured", "in flight", "predicted on pixel6"]
    for pid in groups.values():
        assert {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == pid} == {"cpu", "gpu"}
    assert len([e for e in events if e["name"] == "head" and e["pid"] == groups["measured"]]) == 6


def test_output_says_which_core_replaces_the_gpu_and_whether_branching_wins(succeeds, bundle_dir):
    for more in ((), ("--in-flight", 2, "--details")):
        out, err = succeeds("run", bundle_dir, "--repeat", 2, "--warmup", 0, *more)
        lines = out.splitlines()
        assert "gpu → cpu on core" in err
        assert lines[0].startswith("Results are correct: 7 tensors match model.onnx")
        assert "On this machine branching is" in lines[1]
        assert "CPU cores replace the gpu" in out
        assert any(line.startswith("Next: stretch run") and "--adb" in line for line in lines[-2:])
    assert "inferences/s" in out


@pytest.mark.parametrize(
    ("recommended", "name"),
    [("single:cpu", "original"), ("sequential_same_macs", "sequential, same MACs"), ("whole_graph:cpu", "branched, as one graph")],
)
def test_recommended_network_is_timed_under_its_name(succeeds, bundle_dir, recommended, name):
    edit(bundle_dir, lambda manifest: manifest.update(recommended=recommended))
    out, _ = succeeds("run", bundle_dir, "--recommended", "--repeat", 2, "--warmup", 0, "--details")
    assert f"the recommended network ({name}) takes" in " ".join(out.split())
    assert f"{name}, 2 threads" in out
    assert f"{name} is" in out
    assert not re.search(r"branched(?!, as one graph| it|es)|same net", out)


def test_details_name_baselines_like_the_answer(succeeds, bundle_dir):
    out, _ = succeeds("run", bundle_dir, "--repeat", 2, "--warmup", 0, "--details")
    assert out.count("branched, as one graph, ") > 1
    assert not re.search("same_macs|same net as", out)


def test_work_of_an_omitted_processor_moves_to_a_shared_core_without_an_efficiency(stretch, bundle_dir):
    code, data, err = stretch("run", bundle_dir, "--repeat", 1, "--warmup", 0, "--processors", "cpu", "--json")
    assert (code, data["efficiency"], data["moved"]) == (0, None, {"s1.gpu": "cpu", "s2.gpu": "cpu"})
    assert "share a core" in err
    assert "s1.gpu → cpu, as --processors asks" in err


def test_pickled_input_is_never_loaded(stretch, bundle_dir, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    np.save(tmp_path / "x.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    code, _, err = stretch("run", bundle_dir, "--input", tmp_path / "x.npy")
    assert code == 1
    assert "not a .npy file of plain numbers" in err
    assert not (tmp_path / "owned").exists()


def test_bundle_without_controls_still_runs_and_a_delegate_that_computes_nothing_is_not_checked(succeeds, bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(controls={}, control_macs={}))
    args = ("run", bundle_dir, "--repeat", 1, "--warmup", 0)
    data, _ = succeeds(*args, "--json")
    assert (data["sequential"], data["ratio"], data["throughput"]) == (None, None, None)
    assert "without controls" in data["verdict"]
    assert [item["name"].partition(",")[0] for item in data["comparisons"]] == ["same net as one graph"]
    data, _ = succeeds(*args, "--map", "gpu=null", "--json")
    assert (data["check"], data["max_error"]) == (None, None)
    assert "Results are not checked: a delegate computes nothing" in succeeds(*args, "--map", "gpu=null")[0]


def test_explain_gives_every_operator_a_reason_and_merges_activations_into_convolutions(succeeds, bundle_dir):
    data, _ = succeeds("explain", bundle_dir, "--json")
    for sub in data["subgraphs"]:
        ops = [op for op in data["ops"] if op["subgraph"] == sub["name"]]
        assert {node.name for node in onnx.load(bundle_dir / f"{sub['name']}.onnx").graph.node} <= {op["name"] for op in ops}
        assert all(op["reason"] and {"name", "subgraph", "processor", "delegate", "reason", "ms"} <= set(op) for op in ops)
    ops = {op["name"]: op for op in data["ops"]}
    assert (ops["stem/conv"]["ms"] >= 0, ops["stem/conv"]["source"], ops["stem/relu"]["ms"]) == (True, "measured", None)
    assert "merged into `stem/conv`" in ops["stem/relu"]["reason"]


def test_device_gives_predicted_times_of_its_kernels(succeeds, bundle_dir):
    data, err = succeeds("explain", bundle_dir, "--device", "pixel6", "--json")
    ops = {op["subgraph"] + "/" + op["op"]: op for op in data["ops"]}
    assert (data["device"], ops["s1.gpu/conv"]["source"], ops["s1.gpu/conv"]["ms"] > 0) == ("pixel6", "predicted", True)
    assert "merged into" in ops["s1.gpu/relu"]["reason"]
    assert "not fitted to measurements" in err
    assert all(sub["ms"] > 0 for sub in data["subgraphs"])


def test_explanation_has_counts_and_a_line_per_operator(succeeds, tmp_path):
    out, _ = succeeds("explain", conv_onnx(tmp_path / "m.onnx", inputs=2), "--runtime", "onnxruntime", "--device", "cpu")
    assert "takes 2 of 2 operators" in out
    assert "all operators are supported" in out
    assert any(line.startswith("conv") for line in out.splitlines())


DEVICES = ("--device", "pixel6", "--device", "mi9")


@pytest.mark.torch
def test_models_are_planned_for_each_device_and_a_refusal_gives_a_row(capsys, tmp_path):
    page = tmp_path / "c.html"
    args = ("tiny_resnet", "tiny_vgg", *DEVICES, "--processors", "cpu,gpu", "--kinds", "stretch", *LOOSE, "--set", "macs=0.97:1.03")
    done = succeed(capsys, "compare", *args, "--html", page, "--json")
    rows = json.loads(done.out)["rows"]
    assert [row["name"] for row in rows] == [f"{name} on {device}" for name in ("tiny_resnet", "tiny_vgg") for device in ("pixel6", "mi9")]
    for row in rows:
        assert (row["kind"] == "refused") == (row["ms"] is None) == (row["reason"] is not None)
    assert any(row["ms"] for row in rows)
    report = checked(page.read_text())
    for row in rows:
        assert row["name"] in report.text


@pytest.mark.slow
@pytest.mark.torch
def test_bundle_plan_search_and_run_are_compared_in_one_table(capsys, tmp_path, tiny_bundle):
    model = ("tiny_resnet", "--device", "pixel6", "--weights", "none", *LOOSE)
    outcomes = {
        "plan": call(capsys, "branch", *model, "--dry-run", "--json"),
        "front": call(capsys, "search", *model, "--processors", "cpu,gpu", "--top", 3, "--json"),
        "measured": call(capsys, "run", tiny_bundle, "--repeat", 2, "--warmup", 0, "--json"),
    }
    for name, done in outcomes.items():
        assert done.code == 0, done.err
        (tmp_path / f"{name}.json").write_text(done.out)
    done = succeed(capsys, "compare", tiny_bundle, *(tmp_path / f"{name}.json" for name in outcomes), "--json")
    rows, designs = done.data["rows"], json.loads(outcomes["front"].out)["designs"]
    assert [row["kind"] for row in rows] == ["bundle", "plan", *["design of a search"] * len(designs), "run"]
    plan = json.loads(outcomes["plan"].out)["predicted"]
    assert rows[0]["ms"] == pytest.approx(plan["makespan_ms"]) == rows[1]["ms"]
    assert [row["ms"] for row in rows[2:-1]] == [design["predicted_ms"] for design in designs]
    assert (rows[-1]["ms"], rows[-1]["source"]) == (json.loads(outcomes["measured"].out)["median_ms"], "measured")
    assert "measured on a machine" in done.err
    printed = call(capsys, "compare", tiny_bundle, tmp_path / "measured.json")
    assert "recommended" in printed.out


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ComparedRow(name="b", kind="plan", model="m", device="d", ms=2.0), None),
        (ComparedRow(name="b", kind="run", source="measured", model="m", device="d", ms=2.0), "predicted for a device and others measured"),
        (ComparedRow(name="b", kind="plan", model="m", device="e", ms=2.0), "several devices"),
        (ComparedRow(name="b", kind="plan", model="n", device="d", ms=2.0), "several networks"),
        (refused_row("b", "m", "d", "no design fits"), "b: no design fits"),
    ],
)
def test_rows_that_cannot_be_compared_give_a_warning(other, message):
    warnings = warnings_of([ComparedRow(name="a", kind="plan", model="m", device="d", ms=1.0), other])
    assert warnings == [] if message is None else len(warnings) == 1 and message in warnings[0]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"designs": [], "pareto": []}', '{"segments": 1, "predicted": {}}', "[" * 100_000),
        *('{"median_ms": -1, "subgraphs_alone_ms": {}}', " " * ((64 << 20) + 1), None),
    ],
    ids=lambda text: str(text)[:20],
)
def test_file_other_than_a_result_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StretchError) as error:
        rows_of_file(path)
    assert str(path) in error.value.message
    assert "\n" not in error.value.message
    assert error.value.hint or text is None


def test_problems_are_listed_and_the_exit_code_is_one(stretch, bundle_dir):
    (bundle_dir / "head.onnx").unlink()
    (bundle_dir / "stem.onnx").write_bytes(b"x")
    code, data, _ = stretch("verify", bundle_dir, "--json")
    assert (code, data["ok"], len(data["problems"])) == (1, False, 2)
    code, out, _ = stretch("verify", bundle_dir)
    assert (code, out.count("problem: ")) == (1, 2)


def test_signed_bundle_verifies_and_runs_only_with_the_trusted_key(stretch, bundle_dir, tmp_path):
    pytest.importorskip("cryptography")
    from tests.scheduler.bundle.test_signature import write_keys

    (current, shown), (_, other) = write_keys(tmp_path, "mine"), write_keys(tmp_path, "other")
    code, data, _ = stretch("verify", bundle_dir, "--sign", current, "--json")
    assert (code, data["ok"], data["problems"]) == (0, True, [])
    assert data["max_error"] <= data["tolerance"]
    code, result, _ = stretch("verify", bundle_dir, "--trust", shown, "--json")
    assert (code, result["ok"], result["signer"]) == (0, True, data["signer"])
    assert data["signer"] in stretch("verify", bundle_dir, "--trust", shown)[1]
    run = ("run", bundle_dir, "--repeat", 1, "--warmup", 0, "--trust")
    assert stretch(*run, shown)[0] == 0
    code, data, _ = stretch("verify", bundle_dir, "--trust", other, "--json")
    assert (code, data["ok"], data["signer"]) == (1, False, None)
    code, _, err = stretch(*run, other)
    assert (code, "not signed with a key that is trusted" in err) == (1, True)


def test_tuned_kernel_rows_suffice_to_fit_a_profile(stretch, bundle_dir, tmp_path, monkeypatch):
    """ms ≈ a + b·macs + c·bytes is determined over convolutions and all other kernels."""
    if problem := OpenCLDelegate.unavailable():
        pytest.skip(problem)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = stretch("profile", "tune", bundle_dir, "--mode", "fast", "--budget", 0.1, "--map", "gpu=opencl", "--json")[1]["kernels"]
    measured = [row for row in rows if row["after_ms"] is not None]
    assert {row["kernel"] for row in measured} > {"conv"}
    assert all(row["bytes"] > 0 and row["shape"] for row in measured)
    features = np.array([[1.0, row["macs"] / 1e6, row["bytes"] / 1e6] for row in measured])
    # MACs and bytes vary independently, so both coefficients are determined
    assert np.linalg.matrix_rank(features) == 3
