"""What the process has imported that others fork from: this project, its plug-ins, and Detectron2."""

from importlib import import_module

import revisit.engine.finetune_trainer
import revisit.engine.pretrain_trainer
import revisit.engine.setup  # noqa: F401
from revisit.plugins import NAME, PROJECTS

for _path in sorted(PROJECTS.glob("*/plugin.py")):  # not load_plugins, which remembers that it has looked
    import_module(f"{NAME}.{_path.parent.name}.plugin")
