"""`stretch run`: a bundle against its sequential controls."""

import json
import os

import numpy as np
import pytest


def test_answer_has_ratios_with_intervals_checked_results_throughput_and_a_trace(stretch, bundle_dir, tmp_path):
    file = tmp_path / "t.json"
    words = ("--repeat", 6, "--warmup", 1, "--in-flight", 2, "--trace", file, "--json")
    code, data, _ = stretch("run", bundle_dir, *words)
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
    assert (data["winner"] is None) == ("no clear winner" in data["verdict"] and "loses" not in data["verdict"])
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


def test_people_are_told_where_the_gpu_went_and_who_won(succeeds, bundle_dir):
    out, err = succeeds("run", bundle_dir, "--repeat", 2, "--warmup", 0, "--in-flight", 2)
    assert "gpu → cpu on core" in err
    assert any(name in out for name in ("branching loses here", "branching wins here", "branching beats the original", "no clear winner"))
    assert "weights: random" in out.splitlines()[0]
    assert "results checked: 7 tensors against model.onnx" in out
    assert "inferences/s" in out
    planned, measured, phone = out.splitlines()[-3:]
    assert planned.startswith("Planned for pixel6: ")
    assert measured.startswith("Measured here: the bundle takes ")
    assert "gpu had a stand-in, so this says nothing of the speed on pixel6" in measured
    assert "--adb" in phone


def test_work_of_a_processor_left_out_moves_to_a_shared_core_which_gives_no_efficiency(stretch, bundle_dir):
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


def test_bundle_without_controls_still_runs(succeeds, bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(controls={}, control_macs={}))
    data, _ = succeeds("run", bundle_dir, "--repeat", 1, "--warmup", 0, "--json")
    assert data["sequential"] is None
    assert data["ratio"] is None
    assert "without controls" in data["verdict"]


def test_results_of_a_delegate_that_computes_nothing_are_not_checked_and_said_so(stretch, bundle_dir):
    code, data, _ = stretch("run", bundle_dir, "--repeat", 1, "--warmup", 0, "--map", "gpu=null", "--json")
    assert (code, data["check"], data["max_error"]) == (0, None, None)
    _, out, _ = stretch("run", bundle_dir, "--repeat", 1, "--warmup", 0, "--map", "gpu=null")
    assert "results not checked: a delegate computes nothing" in out
