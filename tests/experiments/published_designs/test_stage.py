"""The published stage stands at its place among all of its cost."""

from experiments.published_designs.run import HERE
from experiments.records import read_record


def test_record_has_the_published_stage_and_the_fastest_by_every_profile():
    rows = read_record(HERE / "results" / "predicted.json").tables["stage"]
    for published, fastest in zip(rows[::2], rows[1::2], strict=True):
        assert "cpu 6×136, dsp 4×160" in published["profile and design"]
        assert fastest["place"] == 1
        assert published["ms of the stage"] >= fastest["ms of the stage"]
        assert 1 <= published["place"] <= published["of designs of that cost"]
