from scheduler.memory.flow import plan_flow


def test_the_largest_tensor_takes_over_the_object_that_the_paper_names(memory_example):
    plan = plan_flow(memory_example)
    assert plan.arenas["4"] == plan.arenas["0"]
    assert sorted(plan.sizes) == [4, 8, 8, 64]
