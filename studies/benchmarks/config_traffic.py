"""Who reads a config between the command line and the first step, and who changes it."""

import os
import runpy
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import patch

from yacs.config import CfgNode as Node

from projects.ToyScenes import make_toy_scenes
from revisit.plugins import PACKAGES

from detectron2.config import CfgNode
from detectron2.engine.train_loop import TrainerBase

CORE = str(PACKAGES / "revisit")
# Methods of a config: all that read attributes, and those that change it, by keys or as a whole.
READS = ("__getattr__",)
LIBRARIES = {sys.modules[kind.__module__].__file__ for kind in CfgNode.__mro__ if issubclass(kind, Node)}
CHANGES = ("__setattr__", "merge_from_list", "merge_from_file", "merge_from_other_cfg")


def config_traffic(folder: Path) -> tuple[set[str], set[str]]:
    """Files of the core that read a key, and functions that set one, before the first step of a small pretraining.

    It is started by tools/train_net.py's command line, on ToyScenes, which is drawn in ``folder``.
    """
    make_toy_scenes(folder / "toy_scenes", num_images=80, size=64)
    readers: set[str] = set()
    changers: set[str] = set()

    def note_reader() -> None:
        if place := place_in_core():
            readers.add(place[0])

    def note_changer() -> None:
        if place := place_in_core():
            changers.add(":".join(place))

    options = ["SOLVER.PRECISION", "", "SOLVER.AMP.ENABLED", "False"]
    options += ["SOLVER.WARMUP_ITERS", "1", "MOCO.QUEUE_SIZE", "60", "KNN_EVAL.LINEAR", "False"]
    options += ["OUTPUT_DIR", str(folder / "run")]
    command = ["train_net.py", "--config-file", str(PACKAGES / "configs/toy/pretrain.yaml"), *options]
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, DETECTRON2_DATASETS=str(folder)))
        stack.enter_context(patch.object(sys, "argv", command))
        stack.enter_context(patch.object(TrainerBase, "before_step", side_effect=SystemExit))
        for names, note in ((READS, note_reader), (CHANGES, note_changer)):
            for name in names:
                stack.enter_context(patch.object(CfgNode, name, noting(getattr(CfgNode, name), note)))
        with suppress(SystemExit):
            runpy.run_path(str(PACKAGES / "tools/train_net.py"), run_name="__main__")
    return readers, changers


def noting(method: Callable, note: Callable[[], None]) -> Callable:
    def call(*args: object, **options: object) -> object:
        note()
        return method(*args, **options)

    return call


def place_in_core() -> tuple[str, str] | None:
    """File and function that called a config's method, if they are the core's; a config's own methods are passed by."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename in (__file__, *LIBRARIES):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(CORE):
        return None
    return frame.f_code.co_filename.removeprefix(CORE + os.sep), frame.f_code.co_name
