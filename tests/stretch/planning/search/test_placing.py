"""Placements of a network's tasks on processors, compared with all placements and with bounds."""

from contextlib import nullcontext
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import InfeasibleError
from predictors.graph import Op, OpGraph
from predictors.predictor import LatencyPredictor
from scheduler.simulate.schedule import Job, schedule
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.divisions.ends import ARRIVING, PlacementProblem, TaskGraph, place, placed_candidates, ranks
from stretch.planning.network.segments import cut_segment
from stretch.planning.plan import plan
from stretch.planning.search.space import DesignSpace, Rules
from tests.effort import examples
from tests.predictors.specified import specified
from tests.stretch.planning.design.test_paths import conv

times = st.integers(1, 1000).map(lambda n: n / 13)


@st.composite
def problems(draw, most=5, processors=2):
    count = draw(st.integers(2, most))
    reads = []
    for number in range(count):
        sources = draw(st.sets(st.integers(ARRIVING, number - 1), min_size=1, max_size=3))
        reads.append({(source, "x" if source == ARRIVING else f"t{source}") for source in sources})
    # the last task reads every tensor that no other task reads
    read = {source for tensors in reads for source, _ in tensors}
    reads[-1] |= {(number, f"t{number}") for number in range(count - 1) if number not in read}
    tasks = TaskGraph(tuple((f"t{number}",) for number in range(count)), tuple(tuple(sorted(tensors)) for tensors in reads))
    ms = np.array(draw(st.lists(st.lists(times, min_size=processors, max_size=processors), min_size=count, max_size=count)))
    link = draw(st.lists(times, min_size=count + 1, max_size=count + 1))
    sizes = dict(zip(["x", *(f"t{number}" for number in range(count))], link, strict=True))
    holder, end = draw(st.integers(0, processors - 1)), draw(st.integers(0, processors - 1))
    return PlacementProblem(tasks, ms, lambda tensor, a, b: 0.0 if a == b else sizes[tensor] / 4, holder, end)


def brute_force(problem):
    """The shortest time of every assignment with every order of preference."""
    count, best = len(problem.tasks), np.inf
    orders = [
        order
        for order in permutations(range(count))
        if all(order.index(source) < order.index(task) for task in range(count) for source in problem.tasks.sources[task])
    ]
    for assignment in product(range(problem.count), repeat=count - 1):
        processors = (*assignment, problem.end)
        for order in orders:
            best = min(best, simulated(problem, processors, order))
    return best


def simulated(problem, processors, order):
    """The makespan if each free processor starts the first ready task in this order, computed step by step from end times."""
    ends, free, waiting = {}, [0.0] * problem.count, list(order)
    now = 0.0
    while waiting:
        for target in range(problem.count):
            ready = [
                t
                for t in waiting
                if processors[t] == target and free[target] <= now and all(ends.get(s, np.inf) <= now for s in problem.tasks.sources[t])
            ]
            if ready:
                task = ready[0]
                moved = sum(
                    problem.moving[tensor][problem.holder if source == ARRIVING else processors[source]][target]
                    for source, tensor in problem.tasks.reads[task]
                )
                ends[task] = free[target] = now + problem.ms[task][target] + moved
                waiting.remove(task)
        now = min((end for end in ends.values() if end > now), default=now)
    return max(ends.values())


@settings(max_examples=examples(40))
@given(problems())
def test_placement_is_no_faster_than_brute_force_and_no_slower_than_one_processor(problem):
    (processors, preferred, ms), order = place(problem), range(len(problem.tasks))
    assert processors[-1] == problem.end
    alone = min(problem.time([processor] * (len(order) - 1) + [problem.end], order) for processor in range(problem.count))
    assert brute_force(problem) - 1e-9 <= ms <= alone + 1e-9
    assert problem.time(processors, preferred) == pytest.approx(ms)


@given(problems(most=8))
def test_rank_of_a_task_is_above_the_ranks_of_its_readers(problem):
    rank = ranks(problem)
    for task in range(len(problem.tasks)):
        assert all(rank[task] > rank[reader] for reader in problem.tasks.readers[task])


def test_list_scheduling_balances_independent_tasks():
    tasks = TaskGraph(tuple((f"t{i}",) for i in range(5)), (*[((ARRIVING, "x"),)] * 4, tuple((i, f"t{i}") for i in range(4))))
    *_, ms = place(PlacementProblem(tasks, np.array([[1.0, 1.0]] * 4 + [[0.5, 0.5]]), lambda tensor, a, b: 0.0, 0, 0))
    assert ms == pytest.approx(2.5)


def test_tensor_with_several_readers_in_a_group_is_transferred_once():
    tasks = TaskGraph((("a",), ("b",), ("c",)), (((ARRIVING, "x"),), ((0, "a"),), ((0, "a"), (1, "b"))))
    problem = PlacementProblem(tasks, np.ones((3, 2)), lambda tensor, a, b: 0.0 if a == b else 10.0, 0, 1)
    assert problem.jobs([(0,), (1, 2)], (0, 1, 1)) == [Job("0", 1.0, ()), Job("1", 12.0, (0,))]
    assert schedule(problem.jobs([(0,), (1,), (2,)], (0, 1, 1))).ms == pytest.approx(1 + 11 + 11)


MI9 = specified("mi9")


def chain():
    ops = [Op("x", "input", attrs={"shape": (1, 64, 28, 28)}), conv("a", "x", 64), conv("b", "a", 64), Op("end", "add", ("x", "b"))]
    return OpGraph.build("chain", ops, "end")


@pytest.mark.parametrize("make", [chain, lambda: cells(2, 4, 4)], ids=["chain", "small work"])
def test_chain_and_small_work_are_not_placed(make):
    graph = make()
    segment, processors = cut_segment(graph, "s1", graph.input.name, graph.output), ("cpu", "gpu")
    config = PlanConfig(processors=processors).resolve(MI9)
    space = DesignSpace.of([segment], processors, Costs(LatencyPredictor(MI9), config.precision), Rules.of(config))
    assert placed_candidates(space, segment, [space.costs.whole(segment, p).ms for p in processors]) == []
    with pytest.raises(InfeasibleError, match="no segment whose division by graph might pay") if make is chain else nullcontext():
        plan(graph, MI9, PlanConfig(processors=processors, kinds=("graph",)))


def cells(count=3, channels=128, size=28):
    """Modules of two chains each; the second chain also reads a tensor that skips over the previous module."""
    ops = [Op("x", "input", attrs={"shape": (1, channels, size, size)})]
    skipped, last = "x", "x"
    for i in range(count):
        a, b, c = (conv(f"{name}{i}", source, channels) for name, source in (("a", last), ("b", skipped), ("c", f"b{i}")))
        ops += [a, b, c, Op(f"sum{i}", "add", (f"a{i}", f"c{i}"))]
        skipped, last = last, f"sum{i}"
    return OpGraph.build("cells", ops, last)
