import threading

from scheduler.faults.keeper import STAND_INS, Keeper
from scheduler.faults.policy import FaultPolicy, Site
from scheduler.placement.place import Placement

GPU = Placement("gpu", "opencl", (), "gpu", "async", True, "")


def test_decisions_are_taken_once_and_kept():
    keeper = Keeper(FaultPolicy(back_off=1, trial=1))
    keeper.failed(GPU, "s1.gpu", "it broke")
    assert keeper.retired(GPU)
    assert keeper.pending
    assert [each.what for each in keeper.take()] == ["retired"]
    assert not keeper.pending
    keeper.ended()
    keeper.returned(Site.of(GPU))
    keeper.ended()
    assert [each.what for each in keeper.take()] == ["on trial", "restored"]
    assert [each.what for each in keeper.decisions] == ["retired", "on trial", "restored"]
    assert not keeper.retired(GPU)


def test_many_threads_that_see_the_same_fault_decide_once():
    keeper = Keeper(FaultPolicy())
    threads = [threading.Thread(target=keeper.failed, args=(GPU, "s1.gpu", "it broke")) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keeper.decisions) == 1


def test_stand_ins_are_delegates_that_any_machine_has():
    from scheduler.delegates import get_delegate

    assert all(get_delegate(name).unavailable() is None for name in STAND_INS)
