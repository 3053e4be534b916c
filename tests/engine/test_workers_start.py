"""How a loader's workers start, by real processes: the suite's own are forks, which need nothing to be picklable."""

import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, TINY, run
from runs import train

from revisit.checkpoint.metrics_file import read_metrics
from revisit.data.loading.workers import SignalSafeLoader

# Above the main part, so that it holds in the processes of a run, too.
BEFORE = {
    # What Python 3.14 does on Linux where nothing is asked for.
    "forkserver": "import multiprocessing\nmultiprocessing.set_start_method('forkserver', force=True)\n",
    # What workers do on macOS.
    "spawn": "from revisit.data.loading import workers\nworkers.START_METHOD = 'spawn'\n",
}
SCRIPT = """
if __name__ == "__main__":
    import runpy
    runpy.run_path("tools/train_net.py", run_name="__main__")
"""


def losses(output: Path) -> list[float]:
    return [value for _, value in read_metrics(output / "metrics.json")["total_loss"]]


NO_SCORES = "KNN_EVAL.BANK '' DATASETS.TEST ()"  # whose loaders start workers, too, each for 5 s of CPU


@pytest.mark.parametrize("method", BEFORE)
def test_a_pretraining_with_workers_is_the_same_however_processes_start(toy_root, tmp_path, method):
    command = f"--config-file configs/toy/pretrain.yaml {TINY} SOLVER.MAX_ITER 2 SEED 3 {NO_SCORES}"
    run(f"python tools/train_net.py {command} OUTPUT_DIR {tmp_path}/without", toy_root)
    (tmp_path / "start.py").write_text(BEFORE[method] + SCRIPT)
    words = f"{command} DATALOADER.NUM_WORKERS 1 OUTPUT_DIR {tmp_path}/with"
    environment = os.environ | {"DETECTRON2_DATASETS": str(toy_root), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    how = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, str(tmp_path / "start.py"), *shlex.split(words)], **how)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(tmp_path / "with") == losses(tmp_path / "without") != []


def test_what_workers_of_evaluations_are_given_can_be_pickled(toy_datasets, tmp_path, monkeypatch):
    given, init = [], SignalSafeLoader.__init__

    def note(loader: SignalSafeLoader, *args: object, **options: object) -> None:
        init(loader, *args, **options)
        given.append(pickle.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn)))

    monkeypatch.setattr(SignalSafeLoader, "__init__", note)
    scores = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train")
    train(tmp_path, "SOLVER.MAX_ITER", 1, *scores, "KNN_EVAL.IMAGE_SIZE", 32, "KNN_EVAL.NUM_NEIGHBORS", 5)
    assert len(given) > 4  # of the training, and of bank and test images before and after it
