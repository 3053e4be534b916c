"""Command lines as a user types them, for the tests that drive whole programs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TINY = (
    "SOLVER.IMS_PER_BATCH 8 MOCO.QUEUE_SIZE 50 MOCO.BN_SPLITS 1 KNN_MOCO.NUM_NEIGHBORS 5 KNN_EVAL.IMAGE_SIZE 32 "
    "VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 16 DATALOADER.NUM_WORKERS 0 TEST.EVAL_EPOCHS 0 "
    "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
)


def run(command: str, datasets: Path, expect: int = 0) -> str:
    """Run one command line in the repository; returns stdout and stderr together."""
    words = shlex.split(command)
    if words[0] == "python":
        words[0] = sys.executable
    environment = os.environ | {"DETECTRON2_DATASETS": str(datasets), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == expect, output[-3000:]
    return output


def one_line_error(command: str, datasets: Path) -> str:
    output = run(command, datasets, expect=2)
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    return line


def documented(document: str) -> list[str]:
    """The Python commands in a document's indented blocks: continued lines joined, comments removed."""
    text = (ROOT / document).read_text().replace("\\\n", " ")
    lines = (line.split("  #")[0] for line in text.splitlines() if line.startswith("    python "))
    return [" ".join(line.split()) for line in lines]
