"""Delegates: one file or folder each, found by name or by the entry point group `nn_stretch.delegates`."""

from scheduler.delegates.base import Compiled, Delegate, Invocation, delegates, get_delegate, load_plugins, origin
from scheduler.delegates.cpu import CpuDelegate
from scheduler.delegates.dsp import DspDelegate
from scheduler.delegates.litert import LiteRtDelegate
from scheduler.delegates.null import NullDelegate
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.openvino import OpenVinoDelegate
from scheduler.delegates.process import ProcessDelegate
from scheduler.delegates.reference import ReferenceDelegate

__all__ = [
    "Compiled",
    "CpuDelegate",
    "Delegate",
    "DspDelegate",
    "Invocation",
    "LiteRtDelegate",
    "NullDelegate",
    "OpenCLDelegate",
    "OpenVinoDelegate",
    "ProcessDelegate",
    "ReferenceDelegate",
    "delegates",
    "get_delegate",
    "load_plugins",
    "origin",
]
