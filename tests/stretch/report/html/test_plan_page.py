"""The report of a plan answers what a reader asks first, and says what is not known."""

import functools
import itertools

import pytest

from scheduler.bundle.agreement import Agreement, SegmentAgreement
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.planning.sentences import chance
from stretch.report.html.page import render
from stretch.report.html.plan_page import plan_bars, plan_page
from stretch.report.roofline import roofline_figure
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified
from tests.stretch.report.html.reading import checked


@functools.cache
def planned(kinds=("stretch",)):
    return plan(resnet50(), specified("mi9"), PlanConfig(processors=("cpu", "dsp"), kinds=kinds))


def text_of(result, answer=None, **more):
    return checked(render(plan_page(answer or result.answer(), origins=result.origins, **more))).text


@pytest.mark.slow
def test_how_fast_how_sure_and_what_to_measure_next_stand_on_it():
    result = planned()
    text, predicted = text_of(result), result.answer().predicted
    assert f"take {predicted.makespan_ms:.2f} ms" in text
    assert f"{predicted.speedup:.2f}×" in text
    assert f"{predicted.sequential_same_macs_ms / predicted.makespan_ms:.2f}×" in text
    assert f"{predicted.makespan_low_ms:.2f} to {predicted.makespan_high_ms:.2f} ms" in text
    assert f"probability {chance(predicted.probability_faster['all'])}" in text
    assert f"measure next {predicted.measure_next}" in text
    assert f"{result.macs_ratio:.3f}" in text
    assert "Recommended" in text


def test_measured_agreement_is_told_whole_and_by_segment():
    result = planned()
    found = Agreement(
        value=0.9,
        low=0.85,
        high=0.94,
        top5_overlap=0.8,
        error=0.25,
        images=200,
        segments=(SegmentAgreement(segment="s3", value=0.95, error=0.1),),
    )
    answer = result.answer()
    fields = {name: getattr(answer, name) for name in answer.__struct_fields__}

    class Measured(type(answer), frozen=True, kw_only=True):
        agreement: Agreement

    text = text_of(result, Measured(**fields, agreement=found))
    assert "same class as the original 90.0% of 200 images held back, 85.0% to 94.0%" in text
    assert "s3 alone 95.0%" in text


def test_exact_design_is_said_to_compute_the_same():
    text = text_of(planned(("rows",)))
    assert "accuracy the original's" in text
    assert "bands of rows" in text


def test_timeline_is_the_plan():
    answer = planned().answer()
    bars = plan_bars(answer)
    computing = sum(bar.ms for bar in bars if bar.kind == "computing")
    assert abs(computing - sum(b.predicted_ms + b.contention_ms for s in answer.segments for b in s.branches)) < 1e-9
    assert max(bar.start_ms + bar.ms for bar in bars) <= answer.predicted.makespan_ms * (1 + 1e-9)
    for row in {bar.row for bar in bars}:
        mine = sorted((bar.start_ms, bar.start_ms + bar.ms) for bar in bars if bar.row == row and bar.kind == "computing")
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(mine))


def test_kernels_of_the_original_stand_under_a_roofline():
    result = planned()
    single = result.answer().predicted
    estimate = result.predictor.predict(result.graph, single.best_single_processor, single.best_single_precision)
    text = text_of(result, roofline=roofline_figure("resnet50", estimate, result.device, single.best_single_processor))
    assert "operations a byte are limited by memory" in text
