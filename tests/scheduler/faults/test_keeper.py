import threading

from scheduler.faults.keeper import Keeper
from scheduler.faults.policy import FaultPolicy
from scheduler.placement.place import Placement

GPU = Placement("gpu", "opencl", (), "gpu", "async", True, "")


def test_many_threads_that_see_the_same_fault_decide_once():
    keeper = Keeper(FaultPolicy())
    threads = [threading.Thread(target=keeper.failed, args=(GPU, "s1.gpu", "it broke")) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keeper.decisions) == 1
