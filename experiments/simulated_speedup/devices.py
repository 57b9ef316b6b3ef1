"""A device with one of its numbers changed: the planner plans for it anew, so that what a speed-up depends on is seen."""

from collections.abc import Callable
from dataclasses import replace

from msgspec.structs import replace as changed

from predictors.devices import DeviceProfile, ProcessorProfile


def with_speed(device: DeviceProfile, family: str, speed: float) -> DeviceProfile:
    """A device on which every kernel of one processor takes its time divided by a number.

    Args:
        device: The device.
        family: The processor, without a core set; its times must not be from a fit of its own.
        speed: How many times as fast.
    """
    assert not any(name == family for name, _, _ in device.fits), f"{family} of {device.id} was fitted"
    priors = {
        key: changed(prior, scale=prior.scale / speed) if prior.processor == family else prior for key, prior in device.priors.items()
    }
    # What relatives say is scaled by the profile's numbers, so that these change only where they are all there is.
    related = any(prior.processor == family for prior in device.priors.values())
    processor = device.processors[family]
    processors = device.processors if related else {**device.processors, family: _faster(processor, speed)}
    return replace(device, priors=priors, processors=processors)


def _faster(profile: ProcessorProfile, speed: float) -> ProcessorProfile:
    """Rates times a number, and times to start a kernel divided by it."""
    sets = {
        name: changed(
            core_set,
            peak_gops={at: changed(peak, value=peak.value * speed) for at, peak in core_set.peak_gops.items()},
            bandwidth_gbs=changed(core_set.bandwidth_gbs, value=core_set.bandwidth_gbs.value * speed),
            cache_gbs=changed(core_set.cache_gbs, value=core_set.cache_gbs.value * speed),
        )
        for name, core_set in profile.core_sets.items()
    }
    return changed(profile, core_sets=sets, launch_us=changed(profile.launch_us, value=profile.launch_us.value / speed))


def with_free_links(device: DeviceProfile) -> DeviceProfile:
    """A device on which moving a tensor takes no time."""
    links = {}
    for name, link in device.links.items():
        nothing = {part: changed(getattr(link, part), value=0.0) for part in ("map_ms", "unmap_ms", "sync_ms")}
        links[name] = changed(link, convert_gbs=changed(link.convert_gbs, value=1e9), convert_back_gbs=None, **nothing)
    return replace(device, links=links)


def without_contention(device: DeviceProfile) -> DeviceProfile:
    """A device whose processors do not slow each other down."""
    processors = {name: changed(processor, contention={}) for name, processor in device.processors.items()}
    return replace(device, processors=processors)


HALF, TWICE = 0.5, 2.0

#: What is changed, by its name in the record. The DSP's changes are for requests with a DSP.
CHANGES: dict[str, Callable[[DeviceProfile], DeviceProfile]] = {
    "DSP at half its speed": lambda device: with_speed(device, "dsp", HALF),
    "DSP at twice its speed": lambda device: with_speed(device, "dsp", TWICE),
    "links free": with_free_links,
    "no contention": without_contention,
}


def changes_for(processors: str) -> list[str]:
    """Names of the changes that mean something for some processors, names with commas."""
    return [name for name in CHANGES if not name.startswith("DSP") or "dsp" in processors.split(",")]
