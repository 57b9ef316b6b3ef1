"""Tasks are whole kernels and chains, each operator in one, and stand in an order in which they can run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from stretch.planning.network.tasks import ARRIVING, find_tasks
from tests.predictors.networks import resnet50, small_resnet
from tests.stretch.planning.design.test_paths import conv, joined

BACKENDS = ("tflite_cpu", "tflite_gpu", "onnxruntime")


def tasks_of(graph, backends=BACKENDS):
    return find_tasks(graph, [fuse(graph, backend) for backend in backends])


def test_skips_do_not_part_a_chain_of_residual_blocks():
    assert not tasks_of(small_resnet()).parallel
    for graph in (small_resnet(), resnet50()):
        tasks = tasks_of(graph)
        assert len(tasks) < sum(op.kind == "add" for op in graph.ops) * 4


def test_parallel_chains_are_a_task_each_and_their_end_another():
    graph = joined(("b", "d"), "concat", conv("a", "x"), conv("b", "a"), conv("c", "x"), conv("d", "c"))
    tasks = tasks_of(graph)
    assert tasks.ops == (("a", "b"), ("c", "d"), ("end",))
    assert tasks.reads == (((ARRIVING, "x"),), ((ARRIVING, "x"),), ((0, "b"), (1, "d")))
    assert (tasks.sources, tasks.readers) == (((), (), (0, 1)), ((2,), (2,), ()))
    assert tasks.parallel


def test_operators_that_any_backend_fuses_are_in_one_task():
    graph = joined(("s", "r"), "concat", conv("a", "x"), conv("b", "x"), Op("s", "add", ("a", "b")), Op("r", "relu", ("x",)))
    (task,) = [ops for ops in tasks_of(graph, ("tflite_gpu",)).ops if "s" in ops]
    assert task == ("a", "b", "s")  # of which the second and the sum are one kernel, which waits for the first
    assert ("b",) in tasks_of(graph, ("tflite_cpu",)).ops


@st.composite
def graphs(draw):
    ops = [Op("x", "input", attrs={"shape": (1, 4, 6, 6)})]
    for number in range(draw(st.integers(1, 10))):
        name, before = f"o{number}", [op.name for op in ops]
        kind = draw(st.sampled_from(["conv", "relu", "add", "mul"]))
        if kind in ("add", "mul"):
            ops.append(Op(name, kind, (draw(st.sampled_from(before)), draw(st.sampled_from(before)))))
        else:
            source = draw(st.sampled_from(before))
            ops.append(conv(name, source) if kind == "conv" else Op(name, "relu", (source,)))
    read = {name for op in ops for name in op.inputs}
    ends = [op.name for op in ops if op.name not in read]
    if len(ends) > 1:
        ops.append(Op("end", "concat", tuple(ends)))
    return OpGraph.build("net", ops, ops[-1].name)


@pytest.mark.slow
@given(graphs(), st.sets(st.sampled_from(BACKENDS), min_size=1))
def test_tasks_of_any_graph_cut_no_kernel_and_can_run_in_their_order(graph, backends):
    tasks = tasks_of(graph, sorted(backends))
    of = {name: number for number, ops in enumerate(tasks.ops) for name in ops}
    assert sorted(of) == sorted(op.name for op in graph.ops if op.kind != "input")
    assert sum(map(len, tasks.ops)) == len(of)
    for backend in backends:
        for kernel in fuse(graph, backend):
            assert len({of[name] for name in kernel.ops}) == 1
    for number, reads in enumerate(tasks.reads):
        assert all(source < number for source, _ in reads)
        wanted = {(of.get(name, ARRIVING), name) for op in tasks.ops[number] for name in graph.by_name[op].inputs}
        assert set(reads) == {each for each in wanted if each[0] != number}
    # whatever is not parallel is a row of tasks
    assert tasks.parallel == any(number - 1 not in tasks.sources[number] for number in range(1, len(tasks)))
