"""A device with one of its numbers changed: what a speed-up hangs on is seen by planning for that device anew."""

from collections.abc import Callable
from dataclasses import replace

from msgspec.structs import replace as changed

from experiments.lossless.run import easier
from predictors.devices import DeviceProfile, FactorWithSource, ProcessorProfile

#: Factors on a speed or a time.
HALF, TWICE = 0.5, 2.0

#: A device made of another.
Change = Callable[[DeviceProfile], DeviceProfile]


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


def with_links(device: DeviceProfile, factor: float) -> DeviceProfile:
    """A device on which every transfer takes its time times a number.

    Args:
        device: The device.
        factor: On times; on rates its inverse.
    """
    links = {}
    for name, link in device.links.items():
        back = link.convert_back_gbs
        links[name] = changed(
            link,
            **{part: changed(getattr(link, part), value=getattr(link, part).value * factor) for part in ("map_ms", "unmap_ms", "sync_ms")},
            convert_gbs=changed(link.convert_gbs, value=link.convert_gbs.value / factor),
            convert_back_gbs=None if back is None else changed(back, value=back.value / factor),
        )
    return replace(device, links=links)


def without_contention(device: DeviceProfile) -> DeviceProfile:
    """A device whose processors do not slow each other down."""
    none = {name: FactorWithSource(value=1, source=processor.contention.source) for name, processor in device.processors.items()}
    processors = {name: changed(processor, contention=none[name], contention_memory=None) for name, processor in device.processors.items()}
    return replace(device, processors=processors)


#: What is changed, by its name in the record. The DSP's changes are for requests with a DSP.
CHANGES: dict[str, Change] = {
    "DSP at half its speed": lambda device: with_speed(device, "dsp", HALF),
    "DSP at twice its speed": lambda device: with_speed(device, "dsp", TWICE),
    "links half the time": lambda device: with_links(device, HALF),
    "links twice the time": lambda device: with_links(device, TWICE),
    "links free": lambda device: easier(device, fixed=True),
    "no contention": without_contention,
}


def changes_for(processors: str) -> list[str]:
    """Names of the changes that mean something for some processors.

    Args:
        processors: With commas, such as ``cpu,dsp``.
    """
    return [name for name in CHANGES if not name.startswith("DSP") or "dsp" in processors.split(",")]
