"""The answer is the JSON: the same keys, and numbers that any reader of JSON takes."""

import msgspec
import numpy as np
import pytest

from stretch.planning.answer import plain
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE


@pytest.fixture(scope="module")
def result():
    return plan(small_resnet(), specified("mi9"), PlanConfig(**LOOSE))


def test_answer_says_what_the_result_is(result):
    answer = result.answer()
    assert answer.predicted.makespan_ms == result.run.makespan_ms
    assert answer.predicted.speedup == pytest.approx(answer.predicted.best_single_ms / answer.predicted.makespan_ms)
    assert answer.macs == sum(branch.macs for segment in answer.segments for branch in segment.branches)
    ends = [segment.start_ms + segment.predicted_ms for segment in answer.segments]
    assert [segment.start_ms for segment in answer.segments[1:]] == pytest.approx(ends[:-1])


def test_numbers_of_arrays_become_plain_ones():
    class Some(msgspec.Struct):
        whole: int
        share: float

    found = plain(Some(np.int64(3), np.float64(0.5)))
    assert found == {"whole": 3, "share": 0.5}
    assert [type(value) for value in found.values()] == [int, float]
