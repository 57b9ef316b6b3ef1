import numpy as np
import pytest

from predictors.errors import StretchError, UsageError
from stretch.planning.cost.accuracy import FEATURES, AccuracyPredictor, load_accuracy, save_accuracy, segment_features
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.search.exact import search_exact
from tests.stretch.planning.spaces import make_space, small_resnet

GRAPH = small_resnet()


def predictor(graph=GRAPH, **changes):
    rng = np.random.default_rng(0)
    weights = {f"s{n}": tuple(float(w) for w in rng.normal(size=len(FEATURES)) * 0.05) for n in range(1, 6)}
    facts = {"base": 0.9, "weights": weights, "designs": 40, "rank_correlation": 0.7, "p_value": 0.01, "rmse": 0.002}
    return AccuracyPredictor(model=graph.name, **facts | changes)


def test_options_add_up_to_the_prediction_of_the_whole_design():
    space = make_space(GRAPH)
    found = search_exact(space, round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs), 1)
    design = BranchDesign(GRAPH.name, "mi9", found.segments(space.costs))
    own = predictor()
    total = own.base + sum(own.gains(options)[index] for options, index in found.picks)
    assert total == pytest.approx(own.predict(GRAPH, design), abs=1e-12)
    assert design.n_meet == len(segment_features(GRAPH, design))


def test_segment_that_stays_whole_changes_nothing():
    own = predictor()
    for options in (o for group in make_space(GRAPH).options for o in group if len(o.candidates) == 1):
        assert not own.gains(options).any()


def test_unknown_segment_is_refused():
    own = predictor(weights={"s9": (0.0,) * len(FEATURES)})
    branched = next(o for group in make_space(GRAPH).options for o in group if len(o.candidates) > 1)
    with pytest.raises(UsageError, match="does not know the segment"):
        own.gains(branched)


def test_written_predictor_is_read_back_and_belongs_to_one_network(tmp_path):
    path = tmp_path / "deep" / "accuracy.json"
    save_accuracy(path, predictor())
    assert load_accuracy(path, GRAPH.name) == predictor()
    with pytest.raises(StretchError, match="is about"):
        load_accuracy(path, "other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no accuracy predictor"),
        ('{"model": "m"}', "no accuracy predictor"),
        (
            '{"model": "small", "base": 0.5, "weights": {"s1": [1]}, "designs": 1, "rank_correlation": 0, "p_value": 1, "rmse": 0}',
            "no accuracy predictor",
        ),
    ],
)
def test_damaged_file_is_refused_with_its_name(tmp_path, text, message):
    path = tmp_path / "accuracy.json"
    path.write_text(text)
    with pytest.raises(StretchError, match=message) as caught:
        load_accuracy(path, GRAPH.name)
    assert str(path) in caught.value.message


def test_newer_schema_and_missing_file_are_refused(tmp_path):
    path = tmp_path / "accuracy.json"
    with pytest.raises(StretchError, match="cannot read"):
        load_accuracy(path, GRAPH.name)
    save_accuracy(path, predictor(schema=2))
    with pytest.raises(StretchError, match="schema 2"):
        load_accuracy(path, GRAPH.name)
