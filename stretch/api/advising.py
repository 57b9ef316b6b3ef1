"""Whether to branch a network, on each of many devices, in one call."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.devices import DeviceProfile, load_device, load_devices
from scheduler.progress import Progress, silent
from stretch.api.main_job import phase_of, read_model, torch_loaded
from stretch.parameters import InputShape, Model, TrustCode, Word

if TYPE_CHECKING:
    from stretch.stages.advise import Advice


def advise(
    model: Model,
    device: Annotated[
        str | Path | DeviceProfile | Sequence[str | Path | DeviceProfile],
        typer.Option("--device", "-d", help="Profile id (see `stretch list devices`), wildcard pattern or TOML file; several with commas."),
        Word(str | None, str),
    ] = "*",
    *,
    precision: Annotated[
        str | None,
        typer.Option(
            help="fp32, fp16 or int8: each processor runs in it, or in the next wider one that it has. Default: that of each processor."
        ),
    ] = None,
    input_shape: InputShape = None,
    trust_code: TrustCode = False,
    progress: Progress | None = None,
) -> "Advice":
    """Say for each device whether to branch a network: the best single processor, exact and stretched branches, and what to do.

    No weights are read, for no time depends on them; a module stays as it is.

    Args:
        progress: Called with a few words for what comes next, and with each device that is answered for.

    Returns:
        An answer for each device, the fastest as advised first; what `stretch advise --json` prints.

    Raises:
        UsageError: If there is no such precision, or no device has it.
        StretchError: Or one of its kinds: unknown names, networks that are not captured.
    """
    from stretch.api.arguments import garbage_collection_paused
    from stretch.stages.advise import advise as answers
    from stretch.stages.advise import check_precision

    profiles = _profiles(device)
    check_precision(profiles, precision)
    tell = progress or silent
    phase = partial(phase_of, {}, tell)
    with garbage_collection_paused(), torch_loaded(phase):
        graph = read_model(model, input_shape, phase, weights="none", trust_code=trust_code, settled=False).graph
        name = model if isinstance(model, str) else f"{type(model).__module__}:{type(model).__qualname__}"
        return answers(name, graph, profiles, precision, progress=tell)


def _profiles(device: str | Path | DeviceProfile | Sequence[str | Path | DeviceProfile]) -> list[DeviceProfile]:
    """Each profile once."""
    devices = [device] if isinstance(device, str | Path | DeviceProfile) else device
    profiles: list[DeviceProfile] = []
    for one in devices:
        profiles += load_devices(one) if isinstance(one, str) else [one if isinstance(one, DeviceProfile) else load_device(one)]
    return list({profile.id: profile for profile in profiles}.values())
