"""Boosted trees evaluated with numpy."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UnknownNameError
from predictors.fits import Trees
from predictors.models.trees import TreeModel

#: Two trees: pixels up to 10, then channels up to 4; and a single leaf.
TREES = Trees(
    ("pixels", "in_channels"),
    (0, 5),
    (0, 1, 0, 0, 0, 0),
    (10.0, 4.0, 0.0, 0.0, 0.0, 0.0),
    (1, 3, 2, 3, 4, 5),
    (2, 4, 2, 3, 4, 5),
    (0.0, 0.0, 0.3, 0.1, 0.2, 0.05),
    -0.5,
    1.0,
)


def by_hand(pixels, channels):
    return -0.5 + 0.05 + (0.3 if pixels > 10 else 0.1 if channels <= 4 else 0.2)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=30))
def test_trees_are_walked_as_by_hand(rows):
    pixels, channels = (np.array(each, dtype=float) for each in zip(*rows, strict=True))
    found = TreeModel(TREES)(SimpleNamespace(pixels=pixels, in_channels=channels))
    assert found == pytest.approx([by_hand(p, c) for p, c in rows])


def test_prediction_is_cut_to_its_bound():
    trees = Trees(("pixels",), (0,), (0,), (0.0,), (0,), (0,), (3.0,), 0.0, 0.75)
    assert TreeModel(trees)(SimpleNamespace(pixels=np.ones(2))) == pytest.approx([0.75, 0.75])


def test_unknown_feature_is_refused():
    with pytest.raises(UnknownNameError, match="pixles"):
        TreeModel(Trees(("pixles",), (0,), (0,), (0.0,), (0,), (0,), (0.0,), 0.0, 1.0))
