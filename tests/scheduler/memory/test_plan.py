from scheduler.memory import Lifetime, Lifetimes, MemoryPlan

TWO = Lifetimes([Lifetime("a", 4, (0, 1)), Lifetime("b", 4, (1, 2))])


def test_plan_that_lets_live_tensors_meet_is_found_out():
    assert "`a` and `b` overlap" in MemoryPlan({"a": 0, "b": 0}, {"a": 0, "b": 3}, (7,)).problem(TWO)


def test_plan_that_leaves_its_arena_is_found_out():
    assert "`b` leaves its arena" in MemoryPlan({"a": 0, "b": 0}, {"a": 0, "b": 4}, (7,)).problem(TWO)
