from scheduler.memory.greedy import plan_greedy


def test_tensors_reuse_the_objects_that_the_paper_names(memory_example):
    plan = plan_greedy(memory_example)
    assert plan.arenas["2"] == plan.arenas["0"]
    assert plan.arenas["4"] == plan.arenas["1"]
    assert plan.sizes == (32, 64, 8)
