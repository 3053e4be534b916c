"""What the process has imported that others fork from: this project, its plug-ins, and Detectron2."""

from importlib import import_module

from commands import rarely_collect

import revisit.engine.finetune_trainer
import revisit.engine.pretrain_trainer
import revisit.engine.setup  # noqa: F401
from revisit.plugins import NAME, PROJECTS

for _path in sorted(PROJECTS.glob("*/plugin.py")):  # not load_plugins, which remembers that it has looked
    import_module(f"{NAME}.{_path.parent.name}.plugin")

rarely_collect()  # a fork inherits it: its first collection would look through all this, and copy it
