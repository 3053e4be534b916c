"""What ``python tools/X.py`` imports first, because Python searches the folder of a script first: the package of this
name takes its place at once, or, where this Python has no environment, one line says how to get it."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("revisit", "yaml", "torch", "cv2", "detectron2")

sys.path.remove(str(Path(__file__).parents[1]))
del sys.modules[__name__]
if missing := [name for name in NEEDED if find_spec(name) is None]:
    lacks = f"error: {sys.executable} lacks {', '.join(missing)}"
    print(f"{lacks}: activate the environment, . .venv/bin/activate, which `make env` makes", file=sys.stderr)
    sys.exit(2)
import_module(__name__)
