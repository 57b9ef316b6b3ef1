"""Forms of `stretch export`: every module of this folder is imported with the package, so that a new file is found as it is."""

from predictors.registry import import_modules
from stretch.exporters.base import Exporter, exporter_of, exporters, written_page

__all__ = ["Exporter", "exporter_of", "exporters", "written_page"]

import_modules(__name__, __path__)
