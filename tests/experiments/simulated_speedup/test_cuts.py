"""Segments that end within stages beside those that end between them."""

import pytest

pytest.importorskip("torch")

from experiments.lossless.run import PROFILES
from experiments.simulated_speedup.cases import VARIED, Case, planned_row
from experiments.simulated_speedup.cuts import CUTS, PLACES, means, row_of
from tests.predictors.networks import small_resnet


@pytest.mark.slow
def test_more_places_to_cut_are_never_slower():
    case = Case("resnet34", "0.1.0", "mi9", "cpu,dsp", *VARIED)
    row = row_of(case, {cuts: planned_row(case, small_resnet(160), cuts) for cuts in CUTS})
    assert row["speed-up, blocks"] >= row["speed-up, stages"] > 0
    assert row["network, device and profile"].endswith("mi9 cpu,dsp, 0.1.0")


def test_means_are_over_the_networks_of_a_device():
    names = [f"net{i}, {' '.join(place)}, {which}" for i in range(2) for which in PROFILES for place in PLACES]
    columns = [f"{column}, {cuts}" for column in ("speed-up", "over sequential") for cuts in CUTS]
    rows = [{"network, device and profile": name} | dict.fromkeys(columns, 2.0 if name.startswith("net0") else 0.5) for name in names]
    found = means(rows)
    assert len(found) == len(PROFILES) * len(PLACES)
    assert all(row[column] == 1.0 for row in found for column in columns)
    assert all(row["networks"] == 2 for row in found)
