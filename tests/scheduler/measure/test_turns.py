from hypothesis import given
from hypothesis import strategies as st

from scheduler.measure.turns import play_round


@given(st.integers(1, 6), st.integers(0, 4))
def test_every_contestant_runs_once_a_round_and_is_first_as_often_as_the_others(count, times):
    ran = []
    contestants = {str(i): lambda i=i: ran.append(i) or i for i in range(count)}
    first = []
    for number in range(count * times):
        ran.clear()
        assert play_round(contestants, number) == {str(i): i for i in range(count)}
        assert sorted(ran) == list(range(count))
        first.append(ran[0])
    assert [first.count(i) for i in range(count)] == [times] * count
