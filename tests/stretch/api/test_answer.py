"""The main job's answer is the JSON of `stretch branch`: the plan's keys, then what was made."""

import dataclasses

import pytest

pytest.importorskip("torch")

from stretch.api import branch
from stretch.planning.config import PlanConfig
from stretch.transform.calibrate import SegmentError

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def made():
    """A plan and a network, nothing written."""
    return branch("tiny_resnet", "pixel6", config=PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.5, 2.0), segment_macs=0.1), weights="none")


def test_answer_has_the_plans_figures_and_its_warnings_after_its_own(made):
    answer, planned = made.answer(), made.plan.answer()
    assert answer.predicted == planned.predicted
    assert answer.segments == planned.segments
    assert len(answer.warnings) == len(made.warnings) + len(planned.warnings) > 0
    assert answer.warnings[len(made.warnings) :] == planned.warnings


def test_calibrated_segments_are_told_with_their_errors(made):
    calibrated = dataclasses.replace(made, calibration=[SegmentError("s1", 0.5, 0.25)])
    assert calibrated.to_json()["calibration"] == [{"segment": "s1", "before": 0.5, "after": 0.25}]
