"""What a search result says of its picks."""

import pytest

from stretch.planning.search.exact import search_exact
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import make_space


@pytest.mark.slow
def test_result_adds_up_its_picks():
    graph = small_resnet()
    space = make_space(graph)
    found = search_exact(space, round(0.97 * graph.macs), round(1.03 * graph.macs), 2)
    designs = found.segments(space.costs)
    assert [d.name for d in designs] == ["stem", "s1", "s2", "head"]
    assert found.n_meet == sum(not d.whole for d in designs) == 2
    assert found.macs == sum(int(o.macs[i]) for o, i in found.picks)
    assert found.params == sum(int(o.params[i]) for o, i in found.picks)
