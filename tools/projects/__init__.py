"""As tools/revisit, of the package ``projects``, where a script imports that before."""

import sys
from importlib import import_module

import revisit  # noqa: F401

del sys.modules[__name__]
import_module(__name__)
