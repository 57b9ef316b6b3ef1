"""Tasks are whole kernels and chains, each operator in one, and stand in an order in which they can run."""

from predictors.fusion import fuse
from predictors.graph import Op
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
