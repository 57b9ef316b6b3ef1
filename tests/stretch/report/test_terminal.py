"""Plans and results on the terminal: nothing is cut at any width, and unknown values are dashes."""

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from scheduler.bundle.agreement import Agreement, BundleAgreement, SegmentAgreement
from stretch.planning.config import PlanConfig
from stretch.planning.pareto import front
from stretch.planning.plan import plan
from stretch.report.brief import ratio
from stretch.report.compared import ComparedRow
from stretch.report.comparison import HEADINGS, cells
from stretch.report.execution import explanation_page
from stretch.report.fit import print_page, text_bars
from stretch.report.front import front_page, together_page
from stretch.report.html.page import Bar, Fact, Grid, Page, Section, timeline
from stretch.report.plan import agreement_lines, figures, plan_page
from stretch.report.prediction import kernel_points
from stretch.stages.explain import Explanation, PlacedOperator, PlacedSubgraph
from stretch.stages.together import best_pair, together_answer
from tests.predictors.networks import Net, resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.cli.commands import succeed
from tests.stretch.planning.cost.measured import GRAPH, made
from tests.stretch.planning.test_pareto import MI9, REQUEST
from tests.stretch.stages.test_together import PROCESSORS, both  # noqa: F401

#: The answer of each verb: a part of its first three lines at 80 columns.
ANSWERS = {
    ("branch", "resnet34", "--device", "a03s", "--dry-run"): "Branching is recommended: resnet34 on a03s",
    ("branch", "mobilenet_v2", "--device", "mi9", "--dry-run"): "Branching is not recommended: mobilenet_v2 on mi9",
    ("branch", "resnet50", "--device", "pixel6", "--dry-run"): "Too close to call: resnet50 on pixel6",
    ("advise", "tiny_resnet", "--device", "a03s,mi9,pixel6"): "tiny_resnet: branching is",
    ("advise", "resnet34", "--device", "pixel6"): "resnet34: too close to call on this device",
    (
        "advise",
        "resnet34",
        "--device",
        "pixel6,s24",
    ): "resnet34: too close to call on 1 of 2 devices, one processor is faster on the others",
    ("predict", "resnet18", "--device", "mi9"): "resnet18 on mi9: fastest on the dsp",
    ("search", "tiny_resnet", "--device", "mi9-release", "--alpha", "100"): "tiny_resnet on mi9-release:",
    ("list", "devices", "pixel6"): "pixel6: Google Pixel 6",
    ("compare", "tiny_resnet", "tiny_mobilenet", "--device", "pixel6"): "tiny_resnet on pixel6 is fastest: ",
    ("compare", "tiny_resnet", "--device", "pixel6", "--device", "a03s"): "on a03s loses least: ",
}


@pytest.mark.torch
@pytest.mark.representatives(1)
@pytest.mark.parametrize("args", ANSWERS, ids=lambda args: " ".join(args[:2]))
def test_answer_is_in_the_first_three_lines_of_at_most_twelve_without_internal_ids(capsys, monkeypatch, args):
    monkeypatch.setenv("COLUMNS", "80")
    weights = ("--weights", "none") if args[0] in ("branch", "predict") else ()
    done = succeed(capsys, *args, *weights)
    lines = done.out.splitlines()
    assert ANSWERS[args] in " ".join(" ".join(lines[:3]).split())
    assert len(lines) <= 12
    assert all(len(line) <= 80 for line in lines if not line.startswith(("Next: ", "      ")) and args[0] != "list")
    assert any(line.startswith("Next: stretch ") or line.startswith("Next: add ") for line in lines)
    assert not re.search(r"same_macs|single:|whole_graph", done.out + done.err)
    warnings = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert max((len(line.split()) for line in warnings), default=0) <= 26


def test_figures_name_the_makespan_and_every_control():
    data = plan(small_resnet(128), specified("mi9"), PlanConfig(processors=("cpu", "dsp")))
    text = dict(figures(data))
    assert text["makespan"].startswith(f"{data.predicted.makespan_ms:.2f} ms")
    assert "(predicted)" in text["makespan"]
    assert text["best single processor"] == f"{data.predicted.best_single_ms:.2f} ms on cpu (int8)"
    assert (text["recommended"], text["search"].partition(",")[0]) == ("branched", "no design within the constraints is faster")
    assert {"sequential, same MACs", "branched net as one graph", "operators split", "lower bound"} <= text.keys()


def page_printed(page, width):
    stream = io.StringIO()
    print_page(Console(file=stream, width=width, color_system=None, markup=False, emoji=False), page)
    return stream.getvalue()


def printed(answer, width=120):
    return page_printed(plan_page(answer), width)


def test_long_processor_names_are_not_cut_in_stacked_rows_and_shorter_bars():
    text = printed(plan(small_resnet(), specified("mi9"), PlanConfig(processors=("cpu[1large3med]", "dsp"), alpha=100.0)), 80)
    assert "…" not in text
    assert "cpu[1large3med]" in text
    assert all(len(line) <= 80 for line in text.splitlines() if line.endswith("|"))


@pytest.mark.parametrize(("factor", "text"), [(1.3, "Confidence: good ("), (4, "Confidence: low (")])
def test_confidence_is_low_if_measured_times_may_be_wrong_by_a_factor_of_two(factor, text):
    device = load_device("a03s")
    fits = {key: replace(fit, interval=replace(fit.interval, low=1 / factor, high=factor)) for key, fit in device.fits.items()}
    answer = plan(small_resnet(64), replace(device, fits=fits), PlanConfig(processors=("cpu", "gpu")))
    [line] = [line for line in plan_page(answer).brief if str(line).startswith("Confidence: ")]
    assert line.startswith(text)
    assert ("times may be wrong by a factor of" in line) is (factor > 2)


def test_reason_of_a_design_of_one_processor_names_no_transfers_between_processors():
    net = Net(1, 3, 32, 32)
    stated = {"kernel": "linear", "in_channels": 768, "out_channels": 64, "groups": 1, "taps": 1, "pixels": 3000, "weights": 0}
    net.add("opaque", **stated, variant="linear", shape=(1, 3000, 64))
    answer = plan(net.graph("tokens"), specified("pixel6"), PlanConfig(processors=("cpu", "gpu")))
    assert answer.design.processors == ("gpu",)
    [why] = [line for line in plan_page(answer).brief if str(line).startswith("Why: ")]
    assert why.startswith("Why: no segment branches, 100 % MACs; moving the input and the output takes ")


@pytest.mark.slow
def test_rows_of_bands_and_repeated_macs_are_shown():
    answer = plan(resnet50(), specified("mi9"), PlanConfig(processors=("cpu", "gpu"), lossless=True))
    segment = next(s for s in answer.run.segments if s.kind == "rows")
    for width in (120, 80, 50):
        text = printed(answer, width)
        assert all(f"{branch.scale.rows[0]}:{branch.scale.rows[1]}" in text for branch in segment.branches)
    texts = dict(figures(answer))
    expected = ("exact in fp32; fp16 rounds", f"{answer.repeated:.1%} of its MACs twice", f"halos {answer.run.halo_ms:.2f} ms")
    assert all(part in texts["computes"] for part in expected)
    assert "to be trained" in texts["sequential, same MACs"]


def test_interval_without_an_upper_end_is_one_sided():
    assert (ratio(0.5, 0.1, 2), ratio(0.5, 0.1, 1e9)) == ("0.50x (0.10-2.00)", "0.50x (0.10 or more)")


SHARE = {"value": 0.9, "low": 0.8, "high": 0.95, "top5_overlap": None}
RUN = {"images": 20, "precisions": {"cpu": ("int8",), "gpu": ("fp16", "fp32")}, "delegates": {"cpu": "cpu", "gpu": "opencl"}}


def test_agreement_of_network_files_and_segments_has_one_line_each():
    alone = (SegmentAgreement(segment="s1", value=0.97, error=0.05), SegmentAgreement(segment="s2", value=None, error=None))
    run = BundleAgreement(**SHARE | {"value": 0.85}, error=0.2, **RUN)
    lines = list(agreement_lines(Agreement(**SHARE, error=0.1, images=40, segments=alone, bundle=run)))
    assert len(lines) == 3
    assert "40 held-out images: the original's class in 90.0% (80.0% to 95.0%), error of the scores 10.0%" in lines[0]
    assert "20 of them, int8 on cpu (run here by cpu), fp16/fp32 on gpu (run here by opencl): the original's class in 85.0%" in lines[1]
    assert lines[2] == "  s1 alone changed: the original's class in 97.0%, error 5.0%"


def test_agreement_on_one_class_is_unknown_and_on_several_their_number_is_shown():
    [note] = [line for line in agreement_lines(Agreement(**dict.fromkeys(SHARE), error=0.1, images=40, classes=1)) if "agreement" in line]
    assert note.startswith("the original answers one class for these images")
    [line] = agreement_lines(Agreement(**SHARE, error=0.1, images=40, classes=7))
    assert "the original's class, one of 7 that it answers, in 90.0%" in line


ROWS = [
    ComparedRow(
        name="one", kind="plan", model="m", device="d", ms=12.345, low_ms=10.0, high_ms=20.0, speedup=1.25, macs_ratio=0.98, exact=True
    ),
    ComparedRow(name="two", kind="run", source="measured", model="m", device="d", ms=3.0, agreement=0.975),
    ComparedRow(name="three", kind="refused", model="m", device="d", reason="no design"),
]


def test_unknown_is_a_dash_and_never_a_number():
    assert [len(cells(row)) for row in ROWS] == [len(HEADINGS)] * 3
    assert cells(ROWS[0])[:5] == ("one", "12.35", "10.00 to 20.00", "predicted", "1.25")
    assert "exact" in cells(ROWS[0])
    assert "97.5%" in cells(ROWS[1])
    assert set(cells(ROWS[2])[1:]) == {"–"}


@pytest.fixture(scope="module")
def answer():
    config = PlanConfig(**REQUEST, kinds=("stretch", "rows"))
    return front(GRAPH, MI9, config, ("latency", "agreement"), 5, made())


@pytest.mark.representatives(1)
@pytest.mark.parametrize("width", [200, 90])
def test_table_has_every_design_with_its_numbers_and_is_not_cut(answer, width):
    text = page_printed(front_page(answer), width)
    for row in answer.designs:
        assert f"{row.predicted_ms:.2f}" in text
        assert f"{row.speedup:.2f}" in text
        assert f"{row.accuracy.agreement:.1%}" in text
    assert f"Best single processor: {answer.best_single_processor}" in text
    assert "…" not in text
    assert "64 images" in text


@pytest.mark.parametrize("width", [40, 70, 200])
def test_names_kinds_and_numbers_of_an_explanation_are_not_cut_at_any_width(width):
    name, stated = "s2_to_s6_gpu_features_7_block_2_fc1_conv", {"op": "GlobalAveragePool", "processor": "gpu", "delegate": "tflite_gpu"}
    placed = {f"{name}_{i}": ("s2_to_s6.gpu" if i < 3 else "head", 12.345 + i) for i in range(6)}
    why = f"merged into `{name}_0` by tflite_gpu"
    ops = [PlacedOperator(name=key, subgraph=subgraph, ms=ms, reason=why, **stated) for key, (subgraph, ms) in placed.items()]
    subgraphs = [
        PlacedSubgraph(name="s2_to_s6.cpu", segment="s2", processor="cpu[1large3med]", macs=12_345_678_901, planned_ms=117.79, ms=None),
        PlacedSubgraph(name="head", segment="head", processor="gpu", macs=5, planned_ms=None, ms=0.5),
    ]
    explanation = Explanation(bundle=Path("b"), device="this machine", processors={}, subgraphs=subgraphs, ops=ops, warnings=[])
    text = page_printed(explanation_page(explanation), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    whole = "".join(text.split())
    expected = [part for row in ops for part in (row.name, row.op, row.subgraph, f"{row.ms:.3f}", *row.reason.split())]
    expected += ["s2_to_s6.cpu", "cpu[1large3med]", "12,345,678,901", "117.79", "0.50", "plannedms"]
    assert [part for part in expected if part not in whole] == []


cells_of_a_table = st.lists(st.lists(st.text("abcdefgh._/", min_size=1, max_size=60), min_size=3, max_size=3), min_size=1, max_size=4)


@given(cells_of_a_table, st.integers(20, 120))
def test_no_cell_of_a_table_is_cut_at_any_width(lines, width):
    text = page_printed(Page("t", [], sections=[Section("s", "h", (), [Grid("c", ("one", "two", "three"), lines, right=(2,))])]), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    shown = sorted("".join(text.split()))
    for letter in "abcdefgh./_":
        assert shown.count(letter) >= sum(cell.count(letter) for line in lines for cell in line)


def test_terminal_has_lead_facts_printed_sections_and_notes_in_their_order():
    sections = [Section("a", "h", ["said"], [Grid("c", ("x",), [("cell",)])]), Section("b", "h", ["hidden"], printed=False)]
    text = page_printed(Page("t", ["lead"], [Fact("fact", "1 ms", "read so")], sections, notes=["next"]), 80)
    assert [line.strip() for line in text.split("\n") if line.strip()] == ["lead", "fact  1 ms (read so)", "said", "x", "cell", "next"]


def test_text_bars_are_proportional_to_time():
    bars = [Bar("cpu", 0, 3, "computing", "s1"), Bar("gpu", 0, 1, "exchange"), Bar("gpu", 1, 4, "others"), Bar("cpu", 5, 1, "join")]
    cpu, gpu, labels, legend = text_bars(bars, 6, 60)
    assert cpu == f"cpu |{'#' * 30}{'.' * 20}{'~' * 10}|"
    assert (gpu, labels.strip()) == (f"gpu |{'~' * 10}{'o' * 40}{'.' * 10}|", "s1")
    assert "the whole is 6.00 ms" in legend
    text = page_printed(Page("t", [], sections=[Section("s", "h", (), [timeline("n", "t", "w", {"one": bars, "two": bars}, 6)])]), 80)
    assert [line for line in text.splitlines() if line in ("one", "two")] == ["one", "two"]


def test_roofline_points_are_the_kernels_with_macs():
    phone = specified("mi9")
    estimate = LatencyPredictor(phone).predict(small_resnet(), "gpu", "fp32")
    multiplying = [kernel for kernel in estimate.kernels if kernel.kernel.macs]
    peak = phone.processor("gpu").cores.peak_gops["fp32"].value
    for (kind, intensity, rate, share), item in zip(kernel_points(estimate), multiplying, strict=True):
        assert (kind, rate * item.time.ms * 1e6) == (item.kernel.cost.kind, pytest.approx(2 * item.kernel.macs))
        assert 0 < rate <= peak
        assert 0 < share < 1
        assert intensity > 0


@pytest.mark.slow
def test_page_of_a_pair_shows_its_times_and_its_baseline(both):  # noqa: F811
    for goal in ("makespan", "throughput"):
        answer = together_answer(best_pair(*both, MI9, PROCESSORS, goal), {})
        text = page_printed(together_page(answer), 160)
        assert f"{answer.makespan_ms:.2f} ms until both have ended" in text
        assert f"{answer.sequential_ms:.2f} ms" in text
        assert ("of each per second" in text) == (goal == "throughput")
