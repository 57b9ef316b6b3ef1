import numpy as np
import pytest

from predictors.errors import UsageError
from stretch.planning.cost.accuracy import FEATURES, AccuracyPredictor, segment_features
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
    total = own.value(sum(own.losses(options)[index] for options, index in found.picks))
    assert total == pytest.approx(own.predict(GRAPH, design), abs=1e-12)
    assert design.n_meet == len(segment_features(GRAPH, design))


def test_segment_that_stays_whole_changes_nothing():
    own = predictor()
    for options in (o for group in make_space(GRAPH).options for o in group if len(o.candidates) == 1):
        assert not own.losses(options).any()


def test_unknown_segment_is_refused():
    own = predictor(weights={"s9": (0.0,) * len(FEATURES)})
    branched = next(o for group in make_space(GRAPH).options for o in group if len(o.candidates) > 1)
    with pytest.raises(UsageError, match="does not know the segment"):
        own.losses(branched)


def test_loss_that_is_bounded_gives_back_the_accuracy():
    own = predictor()
    assert own.value(own.most_loss(0.7)) == pytest.approx(0.7)
    assert own.told(0.2).top1 == pytest.approx(own.base - 0.2)
    assert own.told(0.2).agreement is None
