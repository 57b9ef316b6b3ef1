"""Steps that a queue may go on with by itself: what follows on it whatever else happens.

A thread that has ended a step is told of the next one by the state machine. Where only one step can be next on its queue, and
needs nothing but what that thread has computed or what was there before, the thread may as well be given both: the state
machine then finds that what it says is done already.
"""

from collections.abc import Mapping
from itertools import pairwise

from scheduler.runtime.plan import ExecutionPlan


def followers(plan: ExecutionPlan, queues: Mapping[str, str]) -> dict[str, str]:
    """The step that each one's queue can go on with as soon as it has ended; a step without such a one has none."""
    writers = {tensor: name for name in plan.order for tensor in plan.step(name).outputs}
    #: All that a step waits for, directly or not.
    before: dict[str, set[str]] = {}
    for name in plan.order:
        direct = {writers[tensor] for tensor in plan.step(name).inputs if tensor in writers}
        before[name] = direct.union(*(before[each] for each in direct))
    found: dict[str, str] = {}
    served: dict[str, list[str]] = {}
    for name in plan.order:
        if name in queues:
            served.setdefault(queues[name], []).append(name)
    for names in served.values():
        for number, (name, following) in enumerate(pairwise(names)):
            # nothing else that the queue serves may be ready between the two
            alone = all(each in before[name] for each in names[:number]) and all(following in before[each] for each in names[number + 2 :])
            if alone and name in before[following] and before[following] <= before[name] | {name}:
                found[name] = following
    return found


def in_a_row(name: str, following: Mapping[str, str]) -> tuple[str, ...]:
    """A step, and those that its queue goes on with, in order.

    Args:
        following: As `followers` tells.
    """
    found = [name]
    while found[-1] in following:
        found.append(following[found[-1]])
    return tuple(found)


def awaited(plan: ExecutionPlan, name: str) -> bool:
    """Whether more than one step reads what a step writes, or whoever runs the plan does: then its end is news to others."""
    written = plan.step(name).outputs
    readers = {reader for tensor in written for reader in plan.readers.get(tensor, ())}
    return len(readers) != 1 or not set(plan.outputs).isdisjoint(written)
