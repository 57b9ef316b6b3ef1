"""What a design is to be best in: parsed and checked."""

import re
from dataclasses import dataclass
from math import isfinite

from predictors.errors import UnknownNameError, UsageError
from stretch.planning.messages import Message, OptionName

#: What adds up over the segments of a design, and may be weighed against each other; with their units.
ADDING = {"latency": "ms", "energy": "mJ"}
#: What does not, or has a rule of its own; with their units.
ALONE = {"throughput": "inferences/s", "robust": "ms", "accuracy": ""}
#: Of those, what is looked for by trying designs.
TRIED = ("throughput", "robust")
#: Longest objective that is read.
LONGEST = 80

_TERM = re.compile(r"(?:(?P<weight>[^*]+)\*)?\s*(?P<name>[a-z_]+)\s*")


@dataclass(frozen=True)
class Objective:
    """What a design is to be best in."""

    text: str  # As it was asked for.
    weights: tuple[tuple[str, float], ...] = ()  # Of what adds up, by name; empty where the objective is none of that.

    @property
    def adds(self) -> bool:
        """Whether it adds up over the segments of a design, so that the exact search finds the best one."""
        return bool(self.weights)

    @property
    def tried(self) -> bool:
        """Whether it does not add up, so that designs have to be tried."""
        return self.text in TRIED

    @property
    def only_latency(self) -> bool:
        """Whether it is latency and nothing else."""
        return [name for name, weight in self.weights if weight] == ["latency"]

    @property
    def energy(self) -> float:
        """The weight of energy."""
        return dict(self.weights).get("energy", 0.0)

    @property
    def latency(self) -> float:
        """The weight of latency."""
        return dict(self.weights).get("latency", 0.0)

    @property
    def unit(self) -> str:
        """Unit of its value; empty for a mixture and for a share."""
        return ALONE.get(self.text) or ADDING.get(self.text, "")


def read_objective(text: str) -> Objective:
    """An objective as a person writes it: a word, or weights of latency and energy as ``0.7*latency+0.3*energy``."""
    request = text.strip()
    if request in ALONE:
        return Objective(request)
    if request in ADDING:
        return Objective(request, ((request, 1.0),))
    objective: dict[str, float] = {}
    for part in re.split(r"(?<![eE])\+", request):
        term = _TERM.fullmatch(part.strip())
        if term is None:
            raise UsageError(
                Message("{} {} is not understood", OptionName("objective"), text),
                Message("write a word, or weights: {}", OptionName("objective", "0.7*latency+0.3*energy")),
            )
        name = term["name"]
        if name in ALONE:
            raise UsageError(f"the objective `{name}` is not weighed against others", f"ask for {name} alone, or weigh latency and energy")
        if name not in ADDING:
            raise UnknownNameError.among("objective", name, (*ADDING, *ALONE))
        if name in objective:
            raise UsageError(f"the objective names `{name}` twice", "give each one weight")
        objective[name] = _weight(term["weight"], name)
    if not any(objective.values()):
        raise UsageError("all weights of the objective are 0", "give one of them a weight")
    return Objective(request, tuple(objective.items()))


def _weight(word: str | None, name: str) -> float:
    if word is None:
        return 1.0
    try:
        weight = float(word)
    except ValueError as error:
        raise UsageError(f"the weight `{word.strip()}` of {name} is no number", "write it as 0.3*energy") from error
    if not isfinite(weight) or weight < 0:
        raise UsageError(f"the weight {word.strip()} of {name} is not a number from 0 up", "write it as 0.3*energy")
    return weight
