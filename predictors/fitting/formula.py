"""Formulas: which terms time the kernels of a backend, and what is known of their sizes before anything is measured."""

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from predictors.errors import StretchError
from predictors.files import read_toml
from predictors.fusion import load_rules
from predictors.models.terms import terms

FORMULA_FOLDER = Path(__file__).parent / "formulas"

#: Stands for an inference as a whole: a parameter that no kernel has.
INFERENCE = "inference"

_Size = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class TermPrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a unit of a term costs before anything is measured."""

    compute: _Size = 0.0  # In multiply-accumulates.
    memory: _Size = 0.0  # In bytes from memory.
    launch: _Size = 0.0  # In launches of operators.


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number that a fit finds: ms for a unit of a term, in all the groups of kernels that share it."""

    term: str  # Name of a term (`predictors.models.terms`), or `INFERENCE`.
    groups: tuple[str, ...]  # ``kind`` (with all its variants) or ``kind:variant``.
    shares: tuple[str, ...]  # Scalings by which its size with more threads follows from that with one.
    prior: dict[str, TermPrior]  # Its size before anything is measured, by precision.
    spread: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.5  # How unsure that is, as a logarithm; for pooled fits.

    def takes(self, group: str) -> bool:
        """Whether it has a part in the times of a group."""
        return group in self.groups or group.partition(":")[0] in self.groups


class Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What more threads do to some parameters before that is measured: ``factor / threads ** exponent``."""

    exponent: Annotated[float, msgspec.Meta(ge=0, le=1)]  # 1 where work is divided, 0 where it is not.
    factor: Annotated[float, msgspec.Meta(gt=0, le=10)]  # Beside that.
    #: How unsure that is: relative; for pooled fits, how differently devices do this part of their work, as a logarithm.
    spread: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.2


class Formula(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the kernels of one backend are timed."""

    source: str  # Where it comes from.
    parameters: tuple[Parameter, ...] = ()  # For fits to whole networks.
    threads: dict[str, Scaling] = {}  # Scalings by name.
    kernels: dict[str, tuple[str, ...]] = {}  # For fits to single kernels: terms of each group.
    like: dict[str, str] = {}  # Kinds that tables of kernels do not have, and the group whose times theirs are.
    #: What a multiply-accumulate, a byte and a launch cost by precision, ms, on a device of usual speed. Where they are given, fits to
    #: whole networks are pooled over devices and precisions (`predictors.fitting.pooled`); a parameter's first scaling is then the part of
    #: the work that it belongs to.
    units: dict[str, TermPrior] = {}
    #: Error of a time beside what the formula can say, as a logarithm; for pooled fits.
    noise: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.15
    #: How differently a device may do the parts of its work at one precision beside another, as a logarithm; for pooled fits.
    apart: Annotated[float, msgspec.Meta(gt=0, le=5)] = 0.15


@cache
def load_formula(backend: str) -> Formula:
    """The formula of a backend, or of the one that it is based on."""
    path = FORMULA_FOLDER / f"{backend}.toml"
    if not path.exists():
        base = load_rules(backend).base
        if base is None:
            known = ", ".join(sorted(file.stem for file in FORMULA_FOLDER.glob("*.toml")))
            raise StretchError(
                f"kernels of `{backend}` cannot be fitted: predictors/fitting/formulas has none for it", f"there are: {known}"
            )
        return load_formula(base)
    try:
        formula = msgspec.convert(read_toml(path, "formula"), Formula)
    except msgspec.ValidationError as error:
        raise StretchError(f"{path.name} is not a formula: {error}") from error
    named = [parameter.term for parameter in formula.parameters if parameter.term != INFERENCE]
    for name in [*named, *(term for some in formula.kernels.values() for term in some)]:
        terms.get(name)
    for parameter in formula.parameters:
        if missing := [share for share in parameter.shares if share not in formula.threads]:
            raise StretchError(f"{path.name}: the parameter `{parameter.term}` has the scaling `{missing[0]}`, which [threads] lacks")
    return formula
