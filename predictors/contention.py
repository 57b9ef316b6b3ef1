"""What a kernel takes longer while other processors compute: they share the memory, and the chip's power.

Public runs of six phones whose CPU and GPU computed at once give kernels that
multiply 1.00 to 1.10 times their time alone on the CPU and 1.0 to 1.16 on the GPU,
kernels that move memory up to 1.3. So a profile states two factors, and a kernel
between the two takes its share of each.
"""

from predictors.devices import ProcessorProfile
from predictors.models.base import KernelTime


def contended_ms(time: KernelTime, profile: ProcessorProfile) -> float:
    """Time of a kernel beside other processors that compute, ms; starting it takes as long as before."""
    computing = profile.contention.value
    moving = (profile.contention_memory or profile.contention).value
    work = time.compute_ms + time.memory_ms
    share = time.memory_ms / work if work else 0.0
    return time.launch_ms + max(0.0, time.ms - time.launch_ms) * (computing + (moving - computing) * share)
