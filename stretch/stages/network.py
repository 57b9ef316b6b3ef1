"""First stage: a model by name, or as a module, and what it computes as data."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from predictors.graph import OpGraph
from stretch.capture import Captured, capture
from stretch.models.load import LoadedModel, is_file, load_model

#: What a part of the work is done in, given its name: to tell of it and to time it.
Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Network:
    """The original network.

    Args:
        loaded: As a module, with the source of its weights.
        captured: As data, with its weights.
    """

    loaded: LoadedModel
    captured: Captured

    @property
    def graph(self) -> OpGraph:
        """Its operators."""
        return self.captured.graph


def read_network(
    model: str | Callable[[], LoadedModel],
    shape: Sequence[int] | Callable[[LoadedModel], Sequence[int]] | None = None,
    *,
    weights: str = "default",
    seed: int = 0,
    trust_code: bool = False,
    portable: bool = False,
    phase: Phase = lambda name: nullcontext(),
) -> Network:
    """Load a model and capture it.

    Args:
        model: A name of `stretch models`, Python code, a file; or what gives the loaded model.
        shape: Of the input, batch first, or what tells it of the loaded model; the model's usual one if None.
        weights: ``default``, ``none`` or a file.
        seed: Of random weights.
        trust_code: Whether Python code may be executed.
        portable: Whether a model that is a file is called by its name without its folder, which may be another tomorrow.
        phase: What loading and capturing are done in.

    Raises:
        StretchError: Or one of its kinds: names that do not exist, networks that cannot be captured.
    """
    with phase("load"):
        loaded = load_model(model, weights=weights, seed=seed, trust_code=trust_code) if isinstance(model, str) else model()
    own = shape(loaded) if callable(shape) else shape
    name = loaded.name.rpartition("/")[2] if portable and is_file(loaded.name) else loaded.name
    with phase("capture"):
        return Network(loaded, capture(loaded.module, tuple(own or loaded.input_shape), name))
