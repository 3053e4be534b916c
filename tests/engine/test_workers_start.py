"""How a loader's workers start, by real processes: the suite's own are forks, which need nothing to be picklable."""

import multiprocessing
import os
import pickle
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, TINY, run, wait_until
from runs import train

from revisit.checkpoint.metrics_file import read_metrics
from revisit.data.loading import workers
from revisit.data.loading.workers import SignalSafeLoader
from revisit.engine import launch
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.setup import make_config

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


# Workers as forks of a server, which has what was blocked when it started, and is their parent.
BY_SERVER = "from revisit.data.loading import workers\nworkers.START_METHOD = 'forkserver'\n"


def losses(output: Path) -> list[float]:
    return [value for _, value in read_metrics(output / "metrics.json")["total_loss"]]


NO_SCORES = "KNN_EVAL.BANK '' DATASETS.TEST ()"  # whose loaders start workers, too, each for 5 s of CPU


def start(before: str, words: str, toy_root: Path, folder: Path) -> subprocess.Popen:
    """A training with one worker, in a process group of its own."""
    (folder / "start.py").write_text(before + SCRIPT)
    environment = os.environ | {"DETECTRON2_DATASETS": str(toy_root), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    how = {"cwd": ROOT, "env": environment, "start_new_session": True, "text": True}
    words = [str(folder / "start.py"), *shlex.split(words), "DATALOADER.NUM_WORKERS", "1"]
    return subprocess.Popen([sys.executable, *words], **how, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("method", BEFORE)
def test_a_pretraining_with_workers_is_the_same_however_processes_start(toy_root, tmp_path, method):
    command = f"--config-file configs/toy/pretrain.yaml {TINY} SOLVER.MAX_ITER 2 SEED 3 {NO_SCORES}"
    run(f"python tools/train_net.py {command} OUTPUT_DIR {tmp_path}/without", toy_root)
    process = start(BEFORE[method], f"{command} OUTPUT_DIR {tmp_path}/with", toy_root, tmp_path)
    _, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    assert losses(tmp_path / "with") == losses(tmp_path / "without") != []


def test_sigterm_to_all_processes_ends_a_training_whose_workers_a_server_has_forked(toy_root, tmp_path):
    words = f"--config-file configs/toy/pretrain.yaml {TINY} SOLVER.MAX_ITER 100000 {NO_SCORES} OUTPUT_DIR {tmp_path}"
    process = start(BY_SERVER, words, toy_root, tmp_path)
    metrics = tmp_path / "metrics.json"
    wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size))
    os.killpg(process.pid, signal.SIGTERM)  # as SLURM sends it
    _, errors = process.communicate()
    assert process.returncode == 75 and "stopped by SIGTERM after iteration" in errors, errors[-3000:]
    assert list(tmp_path.glob("model_*.pth"))
    wait_until(lambda: not is_alive(process.pid))


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_plug_ins_own_loader_starts_its_workers_as_ours_do():
    before, methods = multiprocessing.get_start_method(), []
    multiprocessing.set_start_method("forkserver", force=True)  # as Python 3.14 does where nothing is asked for
    try:
        launch.launch(lambda: methods.append(multiprocessing.get_start_method()), launch.Processes(1), device="cpu")
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert methods == [workers.START_METHOD]


def test_what_workers_of_evaluations_are_given_can_be_pickled(toy_datasets, tmp_path, monkeypatch):
    given, init = [], SignalSafeLoader.__init__

    def note(loader: SignalSafeLoader, *args: object, **options: object) -> None:
        init(loader, *args, **options)
        given.append(pickle.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn)))

    monkeypatch.setattr(SignalSafeLoader, "__init__", note)
    scores = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train")
    train(tmp_path, "SOLVER.MAX_ITER", 1, *scores, "KNN_EVAL.IMAGE_SIZE", 32, "KNN_EVAL.NUM_NEIGHBORS", 5)
    assert len(given) > 4  # of the training, and of bank and test images before and after it


@pytest.mark.parametrize("task", ["detection", "segmentation_voc", "depth"])
def test_what_workers_of_a_finetuning_are_given_can_be_pickled(toy_datasets, task):
    cfg = make_config(f"configs/toy/{task}.yaml", [])
    of_test = FinetuneTrainer.build_test_loader(cfg, cfg.DATASETS.TEST[0])
    for dataset in (FinetuneTrainer.build_train_loader(cfg)._dataset, of_test.dataset):
        assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset) > 0
