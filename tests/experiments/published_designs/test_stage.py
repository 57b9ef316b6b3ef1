"""The published stage stands at its place among all of its cost."""

import pytest

from experiments.published_designs.run import HERE, OWN, STAGE
from experiments.records import read_record


def test_record_has_the_published_stage_and_the_fastest_by_every_profile():
    rows = read_record(HERE / "results" / "predicted.json").tables["stage"]
    for published, fastest in zip(rows[::2], rows[1::2], strict=True):
        assert "cpu 6×136, dsp 4×160" in published["profile and design"]
        assert fastest["place"] == 1
        assert published["ms of the stage"] >= fastest["ms of the stage"]
        assert 1 <= published["place"] <= published["of designs of that cost"]


@pytest.mark.torch
@pytest.mark.slow
def test_stage_alone_is_predicted_as_within_its_network():
    pytest.importorskip("torch")
    from experiments.published_designs.designs_file import read_designs
    from experiments.published_designs.predict import Basis, predict
    from experiments.published_designs.stage import Stage

    design = next(each for each in read_designs(OWN) if each.name == STAGE)
    basis = Basis("0.1.0")
    alone = Stage(design, basis).run(Stage(design, basis).published)
    within = next(row for row in predict(design, basis).result.run.segments if len(row.branches) > 1)
    assert [branch.ms for branch in alone.branches] == pytest.approx([branch.ms for branch in within.branches], rel=1e-6)
    assert sum(branch.macs for branch in alone.branches) == sum(branch.macs for branch in within.branches)
