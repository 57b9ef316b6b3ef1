"""Where a subgraph goes that its delegate cannot run: a placement like any other, which says why."""

from collections.abc import Mapping
from dataclasses import replace

from scheduler.cores import available_cores
from scheduler.placement.place import Dispatch, Placement


def fallback_placement(place: Placement, onto: str, why: str, queues: Mapping[str, Dispatch]) -> Placement:
    """The placement on CPU cores that stands in for one whose delegate cannot run a subgraph.

    It takes the cores of the other, or the last of this process where that had none.
    """
    cores = place.cores or available_cores()[-1:]
    queue = f"cpu{'+'.join(map(str, cores))}"
    return replace(
        place,
        delegate=onto,
        cores=cores,
        queue=queue,
        dispatch=queues.get(queue, "blocking"),
        stand_in=True,
        reason=f"the {place.delegate} delegate cannot run it: {why}",
        simulated=False,
        waits_on=None,
    )
