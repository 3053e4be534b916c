"""What code a run was made with: environment.json, a line for each of its starts."""

import json
import os
import platform
import subprocess
from pathlib import Path

import cv2
import numpy as np
import PIL
import torch
import torchvision

import revisit

import detectron2

FILE = "environment.json"
_SOURCE = Path(revisit.__file__).resolve().parents[1]
_PATIENCE = 10  # seconds for git, which a slow network disk may keep


def record_environment(folder: Path, *, again: bool) -> None:
    """Write FOLDER/environment.json; ``again``: add a line to those of the run's earlier starts."""
    with open(folder / FILE, "a" if again else "w") as file:
        file.write(json.dumps(describe_environment()) + "\n")


# Not Detectron2's collect_env_info: one text with this machine's folders, by which two runs cannot be compared.
def describe_environment() -> dict[str, str | bool | None]:
    """The commit of this source (``git_state``), versions and GPUs."""
    return {
        **git_state(_SOURCE),
        "revisit": revisit.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "detectron2": detectron2.__version__,
        "numpy": np.__version__,
        "opencv": cv2.__version__,
        "pillow": PIL.__version__,
        "platform": platform.platform(),
        "cuda": torch.version.cuda or "none",
        "gpus": ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))) or "none",
    }


def git_state(source: Path) -> dict[str, str | bool | None]:
    """``commit`` and ``dirty`` of the repository whose root is ``source``; None, None for anything else."""
    # Where a hook of another repository runs this, git's variables name that one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str) -> str:
        # Without its optional locks git never blocks what the user does in the repository meanwhile.
        command = ["git", "--no-optional-locks", "-C", str(source), *words]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=_PATIENCE)
        return done.stdout.strip()

    try:
        # An installed package may lie below some other repository, whose commit says nothing about it.
        if Path(git("rev-parse", "--show-toplevel")) == source:
            changed = git("status", "--porcelain", "--untracked-files=no")
            return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.SubprocessError):
        pass
    return {"commit": None, "dirty": None}
