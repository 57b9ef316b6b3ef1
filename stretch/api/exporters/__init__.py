"""Forms of `stretch export`: modules of this folder, `exporters.py` of each tool, and entry points `nn_stretch.exporters`.

The package imports all of them, so that a new file needs no registration.
"""

from predictors.registry import import_modules
from stretch.api.exporters.base import Exporter, exporter_of, exporters, named_forms, written_page
from stretch.plugins import load_plugins, load_tools

__all__ = ["Exporter", "exporter_of", "exporters", "named_forms", "written_page"]

import_modules(__name__, __path__)
load_tools("exporters")
load_plugins("nn_stretch.exporters")
