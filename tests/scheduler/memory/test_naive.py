from scheduler.memory.naive import plan_naive


def test_every_tensor_has_an_arena_of_its_own(memory_example):
    plan = plan_naive(memory_example)
    assert sorted(plan.arenas.values()) == [0, 1, 2, 3, 4]
    assert sorted(plan.sizes) == [4, 8, 8, 32, 64]
