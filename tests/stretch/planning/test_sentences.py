"""Options in sentences, as each edge writes them."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import InfeasibleError, TightRule, UsageError
from stretch.planning.sentences import Mention, Sentence, as_flag, as_key, as_word, chance, errors_spelled, spelled


def test_pairs_are_one_word():
    assert as_word({"cpu": "int8", "gpu": "fp16"}) == "cpu=int8,gpu=fp16"


@given(st.text())
def test_what_others_wrote_is_never_taken_for_a_mention(text):
    assert spelled(Sentence("`{}` and {}", text, Mention("alpha")), as_flag) == f"`{text}` and --alpha"
    assert spelled(text, as_flag) == text


@pytest.mark.parametrize("same", [copy.copy, copy.deepcopy, lambda sentence: pickle.loads(pickle.dumps(sentence))])
def test_copy_can_still_be_spelled_otherwise(same):
    assert spelled(same(Sentence("give {}", Mention("alpha", 1.0))), as_flag) == "give --alpha 1"


def test_error_that_passes_an_edge_keeps_its_kind_and_its_data():
    rules = (TightRule("alpha", 0.1, 0.2),)
    with pytest.raises(InfeasibleError, match=r"plan\.alpha") as caught, errors_spelled(as_key):
        raise InfeasibleError(Sentence("{}", Mention("alpha")), "no mention", rules)
    assert (caught.value.rules, caught.value.hint, str(caught.value)) == (rules, "no mention", "`plan.alpha`")
    with pytest.raises(UsageError) as caught, errors_spelled(as_key):
        raise UsageError("plain")
    assert (caught.value.message, caught.value.hint) == ("plain", None)


@pytest.mark.parametrize(("probability", "words"), [(1.0, "over 99 %"), (0.996, "over 99 %"), (0.64, "64 %"), (0.0, "under 1 %")])
def test_probability_is_never_rounded_to_certainty(probability, words):
    assert chance(probability) == words
