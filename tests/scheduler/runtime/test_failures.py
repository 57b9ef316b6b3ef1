from scheduler.placement.place import Placement
from scheduler.runtime.failures import HangError, step_failure

GPU = Placement("gpu", "cpu", (1,), "cpu1", "blocking", True, "")


def test_failed_subgraph_is_named_with_its_processor_and_first_line():
    error = step_failure("s1.gpu", GPU, RuntimeError("no memory\nat line 3"))
    assert error.message == "subgraph `s1.gpu` failed on processor `gpu` (delegate `cpu`): no memory"


def test_failed_join_is_named():
    assert step_failure("s1.join", None, ValueError("bad")).message == "join `s1.join` failed: bad"


def test_hang_is_named_with_where_it_ran_and_how_long():
    error = HangError.of("s1.gpu", GPU, 2.5)
    assert error.message == "subgraph `s1.gpu` did not end within 2.5 s on processor `gpu` (delegate `cpu`)"
    assert "--map gpu=cpu" in error.hint
