"""Results as the terminal shows them: nothing is cut at any width, and the unknown is a dash."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from predictors.predictor import LatencyPredictor
from scheduler.bundle.agreement import Agreement, BundleAgreement, SegmentAgreement
from scheduler.tools.explain.model import Fix, RuntimeExplanation, RuntimeOperator, UnsupportedReason
from stretch.comparison import ComparedRow
from stretch.planning.config import PlanConfig
from stretch.planning.pareto import front, front_answer
from stretch.stages.explain import Explanation, PlacedOperator, PlacedSubgraph
from stretch.tools.report.comparison import HEADINGS, cells
from stretch.tools.report.execution import explanation_page, runtime_lines
from stretch.tools.report.fit import print_page, text_bars
from stretch.tools.report.front import front_page, together_page
from stretch.tools.report.html.page import Bar, Fact, Grid, Page, Section, timeline
from stretch.tools.report.plan import agreement_lines
from stretch.tools.report.prediction import kernel_points
from stretch.tools.together import together, together_answer
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.cost.measured import GRAPH, made
from tests.stretch.planning.test_pareto import MI9, REQUEST
from tests.stretch.tools.test_together import PROCESSORS, both  # noqa: F401

SHARE = {"value": 0.9, "low": 0.8, "high": 0.95, "top5_overlap": None}
NOTHING = dict.fromkeys(SHARE)
RUN = {"images": 20, "precisions": {"cpu": ("int8",), "gpu": ("fp16", "fp32")}, "delegates": {"cpu": "cpu", "gpu": "opencl"}}


def test_network_its_files_and_its_segments_have_a_line_each():
    alone = (SegmentAgreement(segment="s1", value=0.97, error=0.05), SegmentAgreement(segment="s2", value=None, error=None))
    run = BundleAgreement(**SHARE | {"value": 0.85}, error=0.2, **RUN)
    lines = list(agreement_lines(Agreement(**SHARE, error=0.1, images=40, segments=alone, bundle=run)))
    assert len(lines) == 3
    assert "40 images held back: the original's class in 90.0% (80.0% to 95.0%), error of the scores 0.100" in lines[0]
    assert "20 of them, int8 on cpu (run here by cpu), fp16/fp32 on gpu (run here by opencl): the original's class in 85.0%" in lines[1]
    assert lines[2] == "  s1 alone changed: the original's class in 97.0%, error 0.050"


def test_answers_of_one_class_are_said_to_give_no_agreement_and_several_are_counted():
    [alike] = [line for line in agreement_lines(Agreement(**NOTHING, error=0.1, images=40, classes=1)) if "agreement" in line]
    assert alike.startswith("the original answers one class for these images")
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


names = st.text("abcdefgh._/", min_size=1, max_size=60)


@pytest.fixture(scope="module")
def answer():
    config = PlanConfig(**REQUEST, kinds=("stretch", "rows"))
    return front_answer(front(GRAPH, MI9, config, ("latency", "agreement"), 5, made()), {})


@pytest.mark.representatives(1)
@pytest.mark.parametrize("width", [200, 90])
def test_table_has_every_design_with_its_numbers_and_nothing_cut(answer, width):
    text = page_printed(front_page(answer), width)
    for row in answer.designs:
        assert f"{row.predicted_ms:.2f}" in text
        assert f"{row.speedup:.2f}" in text
        assert f"{row.accuracy.agreement:.1%}" in text
    assert f"{answer.best_single_ms:.2f} ms on {answer.best_single_processor}" in text
    assert "…" not in text
    assert "64 images" in text


def rows(count, name="s2_to_s6_gpu_features_7_block_2_fc1_conv"):
    return [
        PlacedOperator(
            name=f"{name}_{i}",
            op="GlobalAveragePool",
            subgraph="s2_to_s6.gpu" if i < count // 2 else "head",
            processor="gpu",
            delegate="tflite_gpu",
            ms=12.345 + i,
            reason=f"merged into `{name}_0` by tflite_gpu",
        )
        for i in range(count)
    ]


def page_printed(page, width):
    stream = io.StringIO()
    print_page(Console(file=stream, width=width, color_system=None, markup=False, emoji=False), page)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 70, 200])
def test_every_name_kind_and_number_of_an_explanation_stands_whole_at_any_width(width):
    subgraphs = [
        PlacedSubgraph(name="s2_to_s6.cpu", segment="s2", processor="cpu[1large3med]", macs=12_345_678_901, planned_ms=117.79, ms=None),
        PlacedSubgraph(name="head", segment="head", processor="gpu", macs=5, planned_ms=None, ms=0.5),
    ]
    explanation = Explanation(bundle=Path("b"), device="this machine", processors={}, subgraphs=subgraphs, ops=rows(6), warnings=[])
    text = page_printed(explanation_page(explanation), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    whole = "".join(text.split())
    for row in rows(6):
        for word in (row.name, row.op, row.subgraph, f"{row.ms:.3f}", *row.reason.split()):
            assert word in whole
    for word in ("s2_to_s6.cpu", "cpu[1large3med]", "12,345,678,901", "117.79", "0.50", "plannedms"):
        assert word in whole


cells_of_a_table = st.lists(st.lists(names, min_size=3, max_size=3), min_size=1, max_size=4)


@given(cells_of_a_table, st.integers(20, 120))
def test_no_cell_of_a_table_is_lost_whatever_the_width(lines, width):
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


def test_bars_of_text_are_in_proportion_to_time():
    bars = [Bar("cpu", 0, 3, "computing", "s1"), Bar("gpu", 0, 1, "exchange"), Bar("gpu", 1, 4, "others"), Bar("cpu", 5, 1, "join")]
    cpu, gpu, labels, legend = text_bars(bars, 6, 60)
    assert cpu == f"cpu |{'#' * 30}{'.' * 20}{'~' * 10}|"
    assert gpu == f"gpu |{'~' * 10}{'o' * 40}{'.' * 10}|"
    assert labels.strip() == "s1"
    assert "the whole is 6.00 ms" in legend
    text = page_printed(Page("t", [], sections=[Section("s", "h", (), [timeline("n", "t", "w", {"one": bars, "two": bars}, 6)])]), 80)
    assert [line for line in text.splitlines() if line in ("one", "two")] == ["one", "two"]


PHONE = specified("mi9")


def test_points_are_the_kernels_that_multiply():
    estimate = LatencyPredictor(PHONE).predict(small_resnet(), "gpu", "fp32")
    points = kernel_points(estimate)
    multiplying = [kernel for kernel in estimate.kernels if kernel.kernel.macs]
    assert len(points) == len(multiplying)
    peak = PHONE.processor("gpu").cores.peak_gops["fp32"].value
    for (kind, intensity, rate, share), item in zip(points, multiplying, strict=True):
        assert kind == item.kernel.cost.kind
        assert rate * item.time.ms * 1e6 == pytest.approx(2 * item.kernel.macs)
        assert 0 < rate <= peak
        assert intensity > 0
        assert 0 < share < 1


FOUND = RuntimeExplanation(
    file=Path("m.onnx"),
    runtime="qnn 2",
    device="htp",
    operators=[
        RuntimeOperator(name="conv", op="Conv", target="QNN", taken=True, partition=0, macs=1000, reason="taken by QNN"),
        RuntimeOperator(name="best", op="ArgMax", target="CPU", taken=False, partition=None, macs=0, reason="axis is not the last"),
        RuntimeOperator(name="shape", op="Shape", target=None, taken=None, partition=None, macs=0, reason="folded"),
    ],
    partitions=1,
    obstacles=[UnsupportedReason(operator="best", op="ArgMax", cause="axis = 1", words="axis is not the last", change="another axis")],
    copies=1,
    share=1.0,
    fix=Fix(steps=("compute constants",), operators=(1, 0)),
    log="",
    warnings=[],
)


def test_counts_first_unsupported_operator_and_fix_are_shown():
    assert runtime_lines(FOUND) == [
        "qnn 2, htp: takes 1 of 2 operators, 100 % of the MACs, in 1 partition, copies 1",
        "first unsupported operator: best (ArgMax), axis = 1",
        "  qnn says: axis is not the last",
        "  another axis",
        "helps, operators off it 1 -> 0: compute constants",
    ]


@pytest.mark.slow
def test_both_networks_and_what_they_have_to_beat_are_told(both):  # noqa: F811
    for goal in ("makespan", "throughput"):
        answer = together_answer(together(*both, MI9, PROCESSORS, goal), {})
        text = page_printed(together_page(answer), 160)
        assert f"{answer.makespan_ms:.2f} ms until both are over" in text
        assert f"{answer.sequential_ms:.2f} ms" in text
        assert ("of each a second" in text) == (goal == "throughput")
