"""Whether to branch a network, on each of many devices, in one call."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from predictors.devices import DeviceProfile, load_device, load_devices
from scheduler.progress import Progress, silent
from stretch.api.main_job import phase_of, read_model, torch_loaded

if TYPE_CHECKING:
    from torch import nn

    from stretch.capture.inputs import InputShapes
    from stretch.stages.advise import Advice


def advise(
    model: "str | nn.Module",
    device: str | Path | DeviceProfile | Sequence[str | Path | DeviceProfile] = "*",
    *,
    precision: str | None = None,
    input_shape: "InputShapes | None" = None,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> "Advice":
    """Say for each device whether to branch a network: the best single processor, exact and stretched branches, and what to do.

    No weights are read, for no time depends on them; a module stays as it is.

    Args:
        model: A name of `stretch list models`, ``package.module:factory``, the path of a file, or a module.
        device: Profile ids, names of devices and wildcard patterns, separated by commas; the path of a profile, a profile, or several of these.
        precision: ``fp32``, ``fp16`` or ``int8``: each processor runs in it, or in the next wider one that it has. None: in its usual one.
        input_shape: As of `stretch.branch`.
        trust_code: Whether ``file.py:factory`` may be executed.
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
