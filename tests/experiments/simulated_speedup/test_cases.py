"""A case is planned as it says, and a network without a design has an empty row."""

import pytest

pytest.importorskip("torch")

from experiments.lossless.run import MODELS
from experiments.simulated_speedup.cases import COLUMNS, STAGES, Case, cases_of, planned_row
from tests.predictors.networks import small_resnet


def test_cases_of_a_network_have_names_of_their_own():
    names = [case.name for case in cases_of("resnet50")]
    assert len(names) == len(set(names))
    assert not set(names) & {case.name for case in cases_of("resnet34")}


@pytest.mark.slow
def test_network_without_a_design_has_an_empty_row():
    row = planned_row(Case("resnet34", "0.1.0", "mi9", "cpu,gpu", "stretched", STAGES), small_resnet(32))
    assert list(row) == ["case", *COLUMNS]
    assert not any(row[column] for column in COLUMNS)


def test_every_network_is_one_of_the_papers():
    assert len(MODELS) == 6
