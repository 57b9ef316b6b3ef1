"""Carries out what was decided of sites: their work goes elsewhere, and comes back on trial."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from predictors.errors import StretchError
from scheduler.faults.keeper import Keeper
from scheduler.faults.policy import Site
from scheduler.placement.place import Dispatch, Placement, queues_of


class Runner(Protocol):
    """What runs subgraphs where they are placed."""

    #: Where each subgraph runs now.
    places: dict[str, Placement]

    def replace(self, name: str, place: Placement) -> None:
        """Run a subgraph elsewhere from now on."""

    def forget(self, site: Site) -> None:
        """Let go of the code of a site where nothing runs."""


class Code(Protocol):
    """What compiles subgraphs."""

    def stand_in(self, name: str, place: Placement, error: Exception, queues: Mapping[str, Dispatch]) -> Placement:
        """Compile a subgraph for where it runs instead; raises the error if there is nowhere."""

    def forget(self, site: Site) -> None:
        """Let go of a delegate and what it compiled."""


class Recovery:
    """Where a session's subgraphs belong, and how they get there.

    Args:
        home: Where each subgraph runs if nothing is wrong.
    """

    def __init__(self, home: Mapping[str, Placement], keeper: Keeper, code: Code) -> None:
        self.home = dict(home)
        self.keeper = keeper
        self._code = code

    @property
    def pending(self) -> bool:
        """Whether something was decided that is not carried out."""
        return self.keeper.pending

    def carry_out(self, runner: Runner) -> None:
        """Do what was decided since the last time, while nothing runs."""
        # of a site that was retired and is on trial by now, the last word counts
        for decision in {action.site: action for action in self.keeper.take()}.values():
            if decision.what == "retired":
                self._leave(decision.site, decision.reason, runner)
            elif decision.what == "on trial":
                self._come_back(decision.site, runner)

    def without(self, site: Site, reason: str, places: Mapping[str, Placement]) -> dict[str, Placement]:
        """Where each subgraph runs when a site is left."""
        remaining = dict(places)
        for name, place in places.items():
            if Site.of(place) == site:
                remaining[name] = self._code.stand_in(name, place, StretchError(reason), queues_of(remaining.values()))
        return remaining

    def _leave(self, site: Site, reason: str, runner: Runner) -> None:
        """Nothing is given to a site any more; what nothing else can run stays, and says so when it runs."""
        for name, place in list(runner.places.items()):
            if Site.of(place) == site:
                with suppress(StretchError):
                    runner.replace(name, self._code.stand_in(name, place, StretchError(reason), queues_of(runner.places.values())))

    def _come_back(self, site: Site, runner: Runner) -> None:
        """A site is made anew, and does its own work again; where it cannot even compile it, it has failed again."""
        runner.forget(site)
        self._code.forget(site)
        for name, place in self.home.items():
            if Site.of(place) != site:
                continue
            try:
                runner.replace(name, place)
            except StretchError as error:
                self.keeper.failed(place, name, error.message)
                return
        self.keeper.returned(site)
