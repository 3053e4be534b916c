"""Parts made on a Ray cluster of two workers, one of which is killed, are those of one process.

`make check-peers` installs Ray.
"""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from checkpoints import finetuned_checkpoint, run_checkpoint, write_converted
from commands import ROOT, wait_until
from kills import tool
from trees import refused

from projects.Predict import file_predictions
from projects.Rows import embedding
from revisit.errors import UserError
from revisit.jobs.on_ray import OnRay
from revisit.jobs.parts import Work, in_parts

pytestmark = pytest.mark.peers
COMMANDS = {
    "embed.py": "--weights {weights} --data folder:{photos} --size 32 --readers 0 --output {output}",
    "make_shards.py": "--data folder:{photos} --count 2 --output {output}",
    "predict.py": "--weights {detector} --score-threshold 0.05 --output {output} {photos}",
}
CLIENTS = 10001


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a head with two CPUs."""
    log = tmp_path_factory.mktemp("ray") / "log"
    start = "start --head --num-cpus 2 --port 0 --include-dashboard=false --disable-usage-stats --block"
    words = [sys.executable, "-m", "ray.scripts.scripts", *start.split(), "--ray-client-server-port", str(CLIENTS)]
    with pytest.MonkeyPatch.context() as patch, open(log, "w") as file:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_worker_niceness", "0")  # Ray's is 15
        patch.setenv("OMP_NUM_THREADS", "1")
        import ray  # not above: the suite collects this file without it

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
        head = subprocess.Popen(words, stdout=file, stderr=file, cwd=ROOT, start_new_session=True)
        wait_until(lambda: "Ray runtime started" in log.read_text())
        yield f"ray://127.0.0.1:{CLIENTS}"
        head.terminate()
        head.wait()


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Files that commands name."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    weights = write_converted(run_checkpoint(), folder / "backbone.pth")
    return {"weights": weights, "detector": finetuned_checkpoint("detection", folder)}


def killing(note: Path, make, numbers: list[int]):
    """Make parts; the first worker that is asked for the third one dies."""
    if 2 in numbers and not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return make(numbers)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("script", "is_client"), [*((script, False) for script in COMMANDS), ("embed.py", True)])
def test_the_bytes_are_those_of_one_process(script, is_client, cluster, names, write_pictures, tmp_path, monkeypatch):
    write_pictures(tmp_path / "photos", 7, size=(90, 120))
    monkeypatch.setattr(embedding, "PART", 2)
    monkeypatch.setattr(file_predictions, "PART", 2)
    words, outputs = COMMANDS[script], [tmp_path / "one", tmp_path / "ray"]
    one, other = (words.format(photos=tmp_path / "photos", output=output, **names) for output in outputs)
    end = " --opts MODEL.DEVICE cpu" if script == "predict.py" else ""
    tool(f"tools/{script} {one}{end}")()
    run, note = OnRay.run, tmp_path / "killed"

    def run_killed(runner, job):
        run(runner, job._replace(make=partial(killing, note, job.make)))

    monkeypatch.setattr(OnRay, "run", run_killed)
    address = cluster if is_client else "ray"
    tool(f"tools/{script} --on {address} {other}{end}")()
    assert note.exists() and contents(outputs[1]) == contents(outputs[0])


def refuse(part: range) -> dict:
    raise UserError(f"no image {part.start}")


def looked_at(folder: Path, runner: OnRay) -> None:
    with in_parts(Work("looking", 9, 3, refuse), folder / "parts", runner):
        pass


def test_a_mistake_in_a_task_is_its_line_and_a_part_that_fits_nowhere_is_refused(cluster, tmp_path, capsys):
    refused("^no image", looked_at, tmp_path, OnRay(cluster, 8, 1, 0))
    assert "--processes 8: 2 parts fit on the cluster at a time (2 CPU, 0 GPU)" in capsys.readouterr().out
    for too_much in (OnRay(cluster, None, 1, 1), OnRay(cluster, 1, 3, 0)):
        refused(r"no part fits on a machine of the cluster \(2 CPU, 0 GPU\)", looked_at, tmp_path, too_much)
