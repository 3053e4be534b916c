"""A run that imports this loses its OUTPUT_DIR before its third iteration."""

import shutil

from revisit.engine.writers import Writers


def vanish(hook: Writers) -> None:
    if hook.trainer.iter == 2:
        shutil.rmtree(hook.trainer.cfg.OUTPUT_DIR)


Writers.before_step = vanish
