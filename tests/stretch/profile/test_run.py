"""Profiles of machines and boards: processors, measurement tables, drawn networks, and noisy measurements."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import onnx
import pytest
import tomli_w

from predictors.devices import load_device
from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.fitting.fit import TimedKernel
from predictors.fitting.networks import load_formula
from predictors.fusion import fuse, load_rules
from predictors.graph import OpGraph
from predictors.measurements.networks import Measurements, Source, load_measurements
from predictors.measurements.tables import KernelLatency, Latency
from predictors.models.fitted import Grain
from predictors.predictor import LatencyPredictor
from scheduler.cores import available_cores
from scheduler.delegates import delegates, get_delegate
from scheduler.measure.steady import LinkTimes, TransferTimes, runner, time_kernels, time_operators
from stretch.planning.cost import compare
from stretch.profile.places import ProfiledProcessor, answer_board, find_processors, make_weights, weight_bytes, write_network
from stretch.profile.run import (
    Chooser,
    CollectedMeasurements,
    Collector,
    HandoverTimer,
    disagreement,
    fit_committee,
    measure_crossing,
    open_table,
    profile_machine,
    write_profile,
)
from stretch.profile.styles import STYLES, draw
from stretch.profile.writing import Crossing, MeasurementTable, MeasurementTarget, ingest, make_profile
from tests.contracts.test_cli_json import check_keys
from tests.predictors.measurements.test_tables import OUTPUT, PROFILE
from tests.stretch.cli.commands import call


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.torch
def test_machine_is_profiled_and_the_profile_predicts_unseen_networks(tmp_path, capsys):
    request = ("profile", "--name", "here", "--processors", "cpu[1core]", "--networks", 16, "--budget", 2, "--out", tmp_path)
    for resume in ((), ("--resume",), ("--resume",)):
        outcome = call(capsys, *request, *resume, "--json", "--quiet")
        # Other programs may disturb a machine for a while: resume as the hint says.
        if "too noisy" not in outcome.err:
            break
    assert (outcome.code, outcome.err) == (0, ""), outcome.out
    check_keys(outcome.data, "profile")
    device = load_device(tmp_path / "here.toml")
    assert device.calibrated
    [fitted] = outcome.data["processors"].values()
    assert fitted["networks"] >= 12
    predictor = LatencyPredictor(device)
    small, large = (predictor.predict(draw("residual", seed), "cpu") for seed in sorted((900, 901), key=lambda n: draw("residual", n).macs))
    assert 0 < small.ms < large.ms
    assert small.low_ms <= small.ms <= small.high_ms
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.fit.json", "here.measurements", "here.toml"]


@pytest.mark.torch
def test_too_few_networks_are_refused_and_kept_for_resuming(tmp_path):
    places = [place()]
    table = open_table("here", tmp_path, places, resume=False)
    with pytest.raises(StretchError, match=r"networks on cpu\[1core\], a fit needs 12"):
        profile_machine("here", places, table, 60, most=1)
    assert [path.name for path in tmp_path.iterdir()] == ["here.measurements"]
    assert open_table("here", tmp_path, places, resume=True).latencies


SOURCE = Source("random networks", "", "", "CC0-1.0", "a machine; a runtime")


def place():
    return find_processors(["cpu"])[0]


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.torch
def test_each_network_is_measured_once_as_a_whole_and_by_kernel(tmp_path):
    table = MeasurementTable.open(tmp_path / "m", SOURCE, resume=False)
    first = Collector(place(), "here", table).collect(60, most=2)
    again = MeasurementTable.open(tmp_path / "m", SOURCE, resume=True)
    second = Collector(place(), "here", again).collect(60, most=2)
    measurements = load_measurements(tmp_path / "m")
    assert len(measurements.latencies) == first.measured + second.measured
    assert len({row.network for row in measurements.latencies}) == len(measurements.latencies)
    whole = {row.network: row.ms for row in measurements.latencies}
    sums = dict.fromkeys(whole, 0.0)
    for row in measurements.kernels:
        sums[row.network] += row.ms
    # The times of kernels add up to that of the network; a disturbed profiler gives no kernels.
    assert all(total == 0 or total == pytest.approx(whole[name], rel=0.25) for name, total in sums.items())
    assert any(sums.values())


@pytest.mark.torch
def test_no_measurement_starts_that_exceeds_the_time(tmp_path):
    table = MeasurementTable.open(tmp_path / "m", SOURCE, resume=False)
    result = Collector(place(), "here", table).collect(0.05)
    # a whole batch would be six
    assert (result.measured, table.latencies) == (0, [])


def test_cpu_is_measured_on_one_core_and_on_all():
    places = find_processors(["cpu"])
    assert (places[0].cores, places[0].serial, places[-1].cores) == (available_cores()[:1], True, available_cores())
    assert ({place.family for place in places}, len({place.core_set for place in places})) == ({"cpu"}, len(places))


@pytest.mark.parametrize(
    ("action", "error", "reason"),
    [
        (lambda at: find_processors(["cpu", "cpu"]), UsageError, "`cpu` is named twice"),
        (lambda at: find_processors(["cpu[9cores]"]), UnknownNameError, r"unknown core set `cpu\[9cores\]`"),
        (lambda at: find_processors(["cpu=onnx"]), UnknownNameError, "unknown delegate to measure `onnx`"),
        (lambda at: find_processors(["cpu", "gpu=vulkan"]), UsageError, "reports no times of kernels"),
        (lambda at: find_processors(["cpu=cpu/int4"]), UsageError, "`cpu` delegate does not run `int4`"),
        (lambda at: open_table("a/b", at, [place()], resume=False), UsageError, "cannot be the name of a profile"),
        (lambda at: open_table("here", at / "missing", [place()], resume=False), StretchError, "there is no folder"),
        (lambda at: CollectedMeasurements(place(), measured=7, unsteady=8).check_noise(), StretchError, "too noisy: the times of 8 of 15"),
        *(
            (lambda at, where=where: ingested(at, PROFILE, "resnet18", MeasurementTarget(*where, "")), UsageError, reason)
            for where, reason in (
                (("my/phone", "cpu[1large]", None), "cannot be the name of a device"),
                (("myphone", "cpu", None), "no processor with its core set"),
                (("myphone", "cpu[1large]", "fp64"), "`fp64` is no precision"),
            )
        ),
        *(
            (lambda at, text=text: answer_board(text), StretchError, "operator graph")
            for text in ("", "{}", "[1]", '{"name": "x", "ops": []}')
        ),
    ],
)
def test_impossible_measurement_is_refused_and_leaves_no_table(tmp_path, action, error, reason):
    with pytest.raises(error, match=reason) as refusal:
        action(tmp_path)
    assert "too noisy" not in reason or "--resume" in refusal.value.hint
    assert not list(tmp_path.glob("*.measurements"))


def test_every_measured_delegate_has_fusion_rules_and_a_formula():
    for backend in {delegates.get(name).fuses for name in delegates} - {""}:
        assert load_rules(backend).id == backend
        assert load_formula(backend).kernels


@pytest.mark.torch
@pytest.mark.parametrize("delegate", ["cpu", "openvino"])
def test_processor_is_timed_in_the_requested_precision(delegate, tmp_path):
    if get_delegate(delegate).unavailable():
        pytest.skip(f"{delegate} is not installed")
    processor, *_ = find_processors([f"cpu={delegate}/int8"])
    assert (processor.precision, find_processors([f"cpu={delegate}"])[0].precision) == ("int8", "fp32")
    graph = draw("residual", 3)
    file = write_network(graph, tmp_path / "int8.onnx", processor.precision)
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(file).graph.node}
    if delegate == "openvino":
        kernels = fuse(graph, processor.backend)
        operators, _ = time_operators(processor.create(), file, processor.caller, [op.name for op in graph.ops])
        times = time_kernels(operators, [kernel.ops for kernel in kernels])
        # OpenVINO's int8 operators have other names than those of the file
        assert all(ms for kernel, ms in zip(kernels, times, strict=True) if kernel.cost.kind == "conv")


@pytest.mark.torch
@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.timing
def test_link_and_contention_of_this_machine_are_measured():
    host, *_, other = find_processors(["cpu", "gpu"])
    result = measure_crossing(host, other)
    assert min(result.link.fixed_ms, result.resume_ms) >= 0
    assert min(result.link.to_gbs, result.link.back_gbs, *result.contention, *result.contention_memory) > 0
    assert "opencl" in result.runtime


def test_handed_over_work_runs_on_another_thread_and_its_errors_are_raised():
    threads = []
    timer = HandoverTimer((), ())
    duration = timer.time_handover(lambda: threads.append(threading.current_thread()))()
    assert duration > 0
    assert threads != [threading.current_thread()]

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        timer.time_handover(fail)()
    timer.close()
    assert not threads[0].is_alive()


def filled(folder, seeds=(0, 1)) -> MeasurementTable:
    table = MeasurementTable.open(folder, SOURCE, resume=False)
    for seed in seeds:
        graph = draw("plain", seed)
        key = ("here", graph.name, "cpu", "1core", "fp32", "a runtime")
        kernels = [KernelLatency(*key, kernel.name, "", *kernel.cost, 1.5) for kernel in fuse(graph, "onnxruntime")]
        table.add(graph, "draws 0", Latency(*key, 2.5, 0.1), kernels)
    return table


def test_saved_table_is_resumed_and_never_overwritten_or_mixed_with_another(tmp_path):
    table = filled(tmp_path / "m")
    table.save()
    again = MeasurementTable.open(tmp_path / "m", SOURCE, resume=True)
    for key in ("graphs", "families", "latencies", "kernels"):
        assert getattr(again, key) == getattr(table, key)
    assert load_measurements(tmp_path / "m").latencies == table.latencies
    with pytest.raises(StretchError, match="has measurements already") as refusal:
        MeasurementTable.open(tmp_path / "m", SOURCE, resume=False)
    assert "--resume" in str(refusal.value.hint)
    with pytest.raises(StretchError, match="of another machine"):
        MeasurementTable.open(tmp_path / "m", Source(SOURCE.title, "", "", SOURCE.licence, "another machine"), resume=True)
    with pytest.raises(StretchError, match="cannot make the folder"):
        filled(tmp_path / "m" / "source.toml" / "inside").save()


def test_ctrl_c_while_saving_leaves_whole_files(tmp_path):
    """A process that saves in a loop is interrupted: all files are readable, and no other file is left."""
    code = f"""
import sys
from pathlib import Path
from tests.stretch.profile.test_run import filled
table = filled(Path({str(tmp_path / "m")!r}), range(6))
table.save()
print("ready", flush=True)
while True:
    table.save()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=os.getcwd()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        process.wait(60)
    table = load_measurements(tmp_path / "m")
    assert len(table.latencies) == 6
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"kernels.csv", "latencies.csv", "networks.jsonl.gz", "source.toml"}


WHERE = MeasurementTarget("myphone", "cpu[1large]", None, "")


def ingested(folder, text, name, where=WHERE):
    (folder / "profile.csv").write_text(text)
    return ingest(folder / "profile.csv", name, where, folder, lambda name: draw("plain", len(name)))


def test_operator_profile_and_benchncnn_output_become_network_latencies(tmp_path):
    for name in ("resnet18", "resnet34"):
        ingested(tmp_path, PROFILE, name)
    table = load_measurements(tmp_path / "myphone.measurements")
    rows = [(row.network, row.processor, row.core_set, row.precision, row.ms) for row in table.latencies]
    assert rows == [(name, "cpu", "1large", "fp32", 2.5) for name in ("resnet18", "resnet34")]
    assert set(table.families.values()) == {"resnet"}
    rows = ingested(tmp_path, OUTPUT, None)
    assert [(row.network, row.precision) for row in rows] == [("squeezenet1_1", "fp16"), ("squeezenet1_1", "int8"), ("resnet18", "fp16")]


PLACES = [
    ProfiledProcessor("cpu", "1core", "cpu", "fp32", (0,), 1.0),
    ProfiledProcessor("cpu", "2cores", "cpu", "fp32", (0, 1), 1.0),
    ProfiledProcessor("gpu", "all", "opencl", "fp32", (1,), 1.0),
]
# 1 MB in at 8 GB/s and 1 MB out at 4 GB/s take 0.125 and 0.25 ms, plus 0.05 ms per transfer
READS = TransferTimes(1_000_000, 1_000_000, (0.9 * 0.425,) * 9, (3.5 * 0.425,) * 9, 20.0, 0.03)
CROSSING = Crossing(LinkTimes(0.05, 8.0, 4.0), (1.02, 1.05), (1.2, 1.3), "a runtime", READS)

RATE = 5e7


def measured(place: ProfiledProcessor) -> list[KernelLatency]:
    """Return kernels that all reach 10⁸ operations per millisecond, or move 10⁷ bytes per millisecond."""
    rows = []
    for style in STYLES:
        for kernel in fuse(draw(style, 0), place.backend):
            cost = kernel.cost
            ms = max(1e-3, kernel.macs / RATE, 4 * (cost.reads + cost.writes) / 1e7)
            rows.append(KernelLatency("x", style, place.family, place.core_set, "fp32", "a runtime", kernel.name, "", *cost, ms))
    return rows


def written(folder, kernels, crossing=CROSSING):
    path = folder / "x.toml"
    table = Measurements(Source("a test", "", "", "CC0-1.0", ""), {}, {}, [], kernels)
    path.write_text(tomli_w.dumps(make_profile("x", "a machine", PLACES, table, {"gpu": crossing})))
    return load_device(path)


def test_resume_time_of_the_cpu_adds_to_the_transfer_back(tmp_path):
    rows = [row for place in PLACES for row in measured(place)]
    links = [written(tmp_path, rows, replace(CROSSING, reads=replace(READS, resume_ms=ms))).links["gpu"] for ms in (0.0, 0.15)]
    assert links[1].sync_ms.value - links[0].sync_ms.value == pytest.approx(0.15)
    assert links[1].map_ms.value == links[0].map_ms.value
    # the known 0.15 ms narrow the relative range: (0.15 + 3.5 · 0.425) / (0.15 + 0.425)
    assert links[1].spread.value[1] == pytest.approx((0.15 + 3.5 * 0.425) / (0.15 + 0.425), rel=1e-3)


def test_written_profile_is_loaded_with_the_measured_values(tmp_path):
    device = written(tmp_path, [row for place in PLACES for row in measured(place)])
    assert set(device.variants) == {"cpu", "cpu[2cores]", "gpu"}
    gpu, link = device.processors["gpu"], device.links["gpu"]
    slowed, cpu = gpu.contention["cpu"], device.processors["cpu"].contention["gpu"]
    assert (slowed.value, slowed.memory, cpu.value) == (1.05, 1.3, 1.02)
    assert slowed.low < slowed.value < slowed.high
    assert link.map_ms.value + link.unmap_ms.value + link.sync_ms.value == pytest.approx(0.05)
    assert (link.convert_gbs.value, link.convert_back_gbs.value, link.runtime) == (8, 4, "a runtime")
    unknown = compare.link("gpu", device)
    assert (unknown.low, unknown.high) == pytest.approx((0.9, 3.5))
    assert (device.feeder("gpu"), device.feeder("cpu")) == (0.03, 0.0)
    assert 0.9 * device.processor("cpu").cores.peak_gops["fp32"].value == pytest.approx(2 * RATE / 1e6, rel=0.01)


@pytest.mark.representatives(5)
@pytest.mark.parametrize("style", STYLES)
def test_drawn_networks_survive_json_and_are_small_enough_to_measure(style):
    for seed in range(8):
        graph = draw(style, seed)
        assert draw(style, seed) == graph != draw(style, seed + 8)
        assert OpGraph.from_json(graph.to_json()) == graph
        assert 0 < graph.macs <= 2.5e9
        assert graph.input.shape[1] == 3


@pytest.mark.slow
def test_drawn_networks_have_every_kind_of_kernel_and_the_shapes_of_real_networks():
    costs = [kernel.cost for style in STYLES for seed in range(25) for kernel in fuse(draw(style, seed), "onnxruntime")]
    assert {cost.kind for cost in costs} >= {"conv1x1", "conv", "depthwise", "grouped", "linear", "pool", "reduce", "elementwise", "copy"}
    dense = [cost for cost in costs if cost.kind in ("conv", "conv1x1")]
    assert {1, 9, 25, 49, 7} <= {cost.taps for cost in dense}
    assert {1, 4} <= {cost.stride for cost in dense}
    assert {9, 25, 49} <= {cost.taps for cost in costs if cost.kind == "depthwise"}
    assert {49, 56 * 56, 112 * 112} <= {cost.pixels for cost in dense}
    assert min(cost.out_channels for cost in dense) <= 16
    assert max(cost.out_channels for cost in dense) >= 1024
    assert {"add", "mul", "silu", "gelu", "layer_norm", "batch_norm"} <= {cost.variant for cost in costs}


def test_every_weight_of_the_graph_is_drawn_in_its_shape():
    graph = draw("inverted", 0)
    weights = make_weights(graph)
    for op in graph.ops:
        assert {key: value.shape for key, value in weights.get(op.name, {}).items()} == graph.op_weights(op)
    assert weight_bytes(graph) == sum(value.nbytes for weight in weights.values() for value in weight.values())


GRAIN = Grain(16, 1, 4)


def costs(name: str):
    style, _, seed = name.rpartition("-")
    return [kernel.cost for kernel in fuse(draw(style, int(seed)), "onnxruntime")]


@pytest.fixture(scope="module")
def committee():
    """Fits to plain networks whose kernels take 1 ms per 10⁷ products and 1 ms per million elements."""
    rows = []
    for seed in range(30):
        for cost in costs(f"plain-{seed}"):
            products = cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps
            rows.append(TimedKernel(f"plain-{seed}", cost, 0.01 + products / 1e7 + (cost.reads + cost.writes) / 1e6))
    return fit_committee(rows, load_formula("onnxruntime"), GRAIN, 0)


def test_fits_disagree_more_about_unseen_kernels_than_about_seen_ones(committee):
    known = np.median([disagreement(committee, costs(f"plain-{seed}"), GRAIN) for seed in range(100, 110)])
    unknown = np.median([disagreement(committee, costs(f"inverted-{seed}"), GRAIN) for seed in range(10)])
    assert unknown >= known


def test_networks_with_the_most_disagreement_are_chosen_in_addition_to_random_ones():
    choice, drawn = Chooser([]).choose(6, lambda graph: float(len(graph.ops))), Chooser([]).draw(18)
    longest, all_drawn = (sorted((len(graph.ops) for graph in graphs), reverse=True) for graphs in (choice, drawn))
    assert (len({graph.name for graph in choice}), longest[:3]) == (6, all_drawn[:3])


@pytest.mark.parametrize(("rate", "sides"), [(1e6, 1), (3e9, 4)])
def test_fast_processors_run_some_networks_for_large_images(rate, sides):
    chooser = Chooser([])
    usual = max(graph.inputs[0].shape[2] for graph in chooser.draw(len(STYLES)))
    chooser.rate = rate
    drawn = [(graph.inputs[0].shape[2], graph.macs) for graph in chooser.draw(8 * len(STYLES))]
    largest = max(size for size, _ in drawn)
    assert largest <= sides * 288
    assert (largest > 288) == (sides > 1)
    assert all(macs <= rate * 50 for size, macs in drawn if size > usual)


@pytest.mark.torch
@pytest.mark.parametrize("style", STYLES)
def test_kernels_of_onnx_runtime_are_those_of_the_fusion_rules(tmp_path, style):
    graph = draw(style, 1)
    cores = available_cores()[:1]
    delegate = get_delegate("cpu").create(cores)
    file = write_network(graph, tmp_path / "x.onnx")
    compiled = delegate.compile(file)
    y = np.zeros(graph.by_name[graph.output].shape, np.float32)
    compiled.run([np.random.default_rng(0).standard_normal(graph.input.shape, np.float32)], [y])
    assert 1e-6 < np.abs(y).max() < 1e12  # neither infinite nor denormal numbers, which slow kernels down
    runner(compiled, cores)()
    operators, added = time_operators(delegate, file, cores, [op.name for op in graph.ops])
    kernels = fuse(graph, "onnxruntime")
    times = time_kernels(operators, [kernel.ops for kernel in kernels])
    # Slices of a microsecond round to zero, and the runtime may fuse normalisations or sums that the rules do not.
    untimed = [kernel.cost.kind for kernel, ms in zip(kernels, times, strict=True) if ms is None]
    assert len(untimed) <= 0.25 * len(kernels)
    assert not set(untimed) & {"conv", "conv1x1", "depthwise", "grouped", "linear"}
    # Added operators change layouts: a small part of the time.
    assert added <= 0.5 * sum(operators.values()) + 0.2


def test_processor_without_kernel_times_is_calibrated_by_its_networks(tmp_path):
    """Times of an invented processor: a time per multiply-accumulate, a time per byte, and a constant."""
    graphs = {graph.name: graph for graph in (draw(style, seed) for style in STYLES for seed in range(3))}
    where = place()

    def ms(graph):
        return float(0.05 + graph.macs / 40e6 + sum(4 * np.prod(op.shape) for op in graph.ops) / 8e6)

    rows = [Latency("here", name, "cpu", where.core_set, "fp32", where.runtime, ms(graph)) for name, graph in graphs.items()]
    source = Source("invented", "", "", "CC0-1.0", "invented")
    table = MeasurementTable(source, graphs, dict.fromkeys(graphs, "draws 0"), rows, [], tmp_path / "here.measurements")
    [prior] = write_profile("here", [where], table, {})
    assert prior.left_out.networks >= 12
    predictor = LatencyPredictor(load_device(tmp_path / "here.toml"))
    ratios = [predictor.predict(graph, "cpu").ms / ms(graph) for graph in (draw(style, 50) for style in STYLES)]
    assert 0.8 < np.median(ratios) < 1.25
    few = MeasurementTable(source, graphs, table.families, rows[:5], [], tmp_path / "few.measurements")
    with pytest.raises(StretchError, match="5 networks"):
        write_profile("here", [where], few, {})
    assert load_device(tmp_path / "here.toml").calibrated


@pytest.mark.torch
def test_board_gets_networks_in_the_precision_it_requests():
    graph = draw("residual", 1)
    whole, half = (answer_board(precision + graph.to_json().decode()) for precision in ("fp32", "fp16"))
    assert len(half) < 0.6 * len(whole)
