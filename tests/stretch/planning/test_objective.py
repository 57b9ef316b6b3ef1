"""What a person writes as an objective is read, or refused in a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UnknownNameError, UsageError
from stretch.planning.objective import read_objective


@pytest.mark.parametrize("text", ["latency", "energy"])
def test_word_that_adds_up_weighs_itself_alone(text):
    found = read_objective(f" {text} ")
    assert found.weights == ((text, 1.0),)
    assert found.adds
    assert not found.tried


@pytest.mark.parametrize("text", ["throughput", "robust"])
def test_what_does_not_add_up_is_tried(text):
    assert read_objective(text).tried
    assert not read_objective(text).adds


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6))
def test_weights_are_read_as_they_are_written(latency, energy):
    found = read_objective(f"{latency!r}*latency + {energy!r}*energy")
    assert (found.latency, found.energy) == (latency, energy)
    assert not found.only_latency
    assert not found.unit


def test_name_without_weight_counts_once_and_weight_of_nothing_leaves_latency_alone():
    assert read_objective("latency+2e+1*energy").energy == 20
    assert read_objective("3*latency+0*energy").only_latency


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2*beauty", "unknown objective `beauty`"),
        ("fast", "unknown objective `fast`"),
        ("latency+latency", "names `latency` twice"),
        ("-1*latency", "not a number from 0 up"),
        ("nan*energy", "not a number from 0 up"),
        ("inf*energy", "not a number from 0 up"),
        ("two*energy", "is no number"),
        ("0*latency+0*energy", "all weights of the objective are 0"),
        ("latency+robust", "`robust` is not weighed against others"),
        ("latency-energy", "is not understood"),
        ("", "is not understood"),
        ("latency+", "is not understood"),
    ],
)
def test_what_is_no_objective_is_refused(text, why):
    with pytest.raises((UsageError, UnknownNameError)) as caught:
        read_objective(text)
    assert why in caught.value.message
    assert caught.value.hint
