"""A run that imports this loses its OUTPUT_DIR before its third iteration."""

import shutil

from revisit.engine.hooks import EarlyProgress


def vanish(hook: EarlyProgress) -> None:
    if hook.trainer.iter == 2:
        shutil.rmtree(hook.trainer.cfg.OUTPUT_DIR)


EarlyProgress.before_step = vanish
