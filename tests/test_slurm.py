"""tools/slurm.py against stand-ins of SLURM's programs, which run what a cluster would."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest
from commands import ROOT, TINY, one_line_error, run

sys.path.insert(0, str(ROOT / "tools"))
import slurm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are Linux programs")
COMMAND = "python tools/slurm.py --nodes 2 --gpus-per-node 1 --cpu --by sbatch --logs {logs}"
# sbatch: keeps the script, starts it as job 7 on two nodes, in the background, and prints what SLURM prints.
STAND_INS = {
    "sbatch": """cat > $SLURM_TEST/script
SLURM_JOB_ID=7 SLURM_JOB_NODELIST=127.0.0.[1-2] setsid bash $SLURM_TEST/script > $SLURM_TEST/log 2>&1 &
echo $! > $SLURM_TEST/pid
echo Submitted batch job 7""",
    "scontrol": """if [ $1 = show ]; then echo 127.0.0.1; echo 127.0.0.2; else echo "$@" >> $SLURM_TEST/scontrol; fi""",
    "srun": """while [[ $1 == --* ]]; do shift; done
trap 'kill -USR1 $(jobs -p); wait' USR1
SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@" & wait""",
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Two nodes of one machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TEST", str(tmp_path))
    return tmp_path


def wait(cluster: Path, seconds: float = 120) -> str:
    pid = (cluster / "pid").read_text().strip()
    subprocess.run(["timeout", str(seconds), "tail", f"--pid={pid}", "-f", "/dev/null"], check=True)
    return (cluster / "log").read_text()


def test_a_job_on_two_nodes_trains_and_goes_on_when_it_is_submitted_again(cluster, toy_root, tmp_path):
    command = (
        f"{COMMAND.format(logs=tmp_path / 'logs')} -- --config-file configs/toy/pretrain.yaml "
        f"OUTPUT_DIR {tmp_path}/run {TINY} SEED 1"
    )
    assert "Submitted batch job 7" in run(f"{command} SOLVER.MAX_ITER 8", toy_root)
    log = wait(cluster)
    assert "2 gloo processes" in log and (tmp_path / "run/model_final.pth").exists(), log[-3000:]
    assert "#SBATCH --requeue" in (cluster / "script").read_text()
    run(f"{command} SOLVER.MAX_ITER 8", toy_root)
    assert "nothing to do: the run has finished its 8 iterations" in wait(cluster)


def test_a_job_whose_time_is_up_writes_a_checkpoint_and_is_queued_again(cluster, toy_root, tmp_path):
    options = f"--config-file configs/toy/pretrain.yaml SOLVER.MAX_ITER 100000 OUTPUT_DIR {tmp_path}/run {TINY} SEED 1"
    run(f"{COMMAND.format(logs=tmp_path / 'logs')} -- {options}", toy_root)
    pid, end = int((cluster / "pid").read_text()), time.monotonic() + 120
    while not (tmp_path / "run/metrics.json").exists() or not (tmp_path / "run/metrics.json").stat().st_size:
        assert time.monotonic() < end, (cluster / "log").read_text()[-3000:]
        time.sleep(0.2)
    os.kill(pid, signal.SIGUSR1)  # as --signal=B:USR1 asks for
    log = wait(cluster, 60)
    assert (cluster / "scontrol").read_text() == "requeue 7\n"
    assert "stopped by SIGUSR1 after iteration" in log and list((tmp_path / "run").glob("model_*.pth")), log[-3000:]


def test_print_submits_nothing_and_quotes_what_it_is_given(toy_root, tmp_path):
    text = run(
        "python tools/slurm.py --nodes 4 --gpus-per-node 8 --partition gpu --hours 48 --print -- --config-file F "
        "DATASETS.TRAIN \"('a b',)\"",
        toy_root,
    )
    for line in ("--nodes=4", "--gpus-per-node=8", "--partition=gpu", "--time=48:00:00", "--cpus-per-task=64"):
        assert f"#SBATCH {line}\n" in text
    (srun,) = [line for line in text.splitlines() if line.startswith("srun")]
    inner = shlex.split(srun.rstrip("&"))[-1]
    words = shlex.split(inner)
    assert words[0] == sys.executable and words[1] == "tools/train_net.py" and "('a b',)" in words
    assert subprocess.run(["bash", "-n"], input=text, text=True, cwd=ROOT).returncode == 0


def test_submitit_runs_the_training_and_would_submit_it_again(toy_root, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("DETECTRON2_DATASETS", str(toy_root))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tools'}")  # run as a script, it is pickled with its code
    options = f"--config-file configs/toy/pretrain.yaml OUTPUT_DIR {tmp_path}/run SOLVER.MAX_ITER 3 {TINY}"
    args = Namespace(
        nodes=1, gpus_per_node=1, cpu=True, cpus_per_gpu=1, hours=1, partition=None, job_name="toy",
        logs=tmp_path / "logs", options=shlex.split(options),
    )  # fmt: skip
    number = slurm.submit_by_submitit(args, cluster="local").split()[-1]
    result, end = tmp_path / f"logs/{number}_0_result.pkl", time.monotonic() + 120
    while not result.exists():
        assert time.monotonic() < end
        time.sleep(0.2)
    log = (tmp_path / f"logs/{number}_0_log.err").read_text()
    assert (tmp_path / "run/model_final.pth").exists(), log[-3000:]
    again = slurm.TrainTask(args).checkpoint()
    assert isinstance(again.function, slurm.TrainTask) and again.function.args is args


def test_submitits_signal_lets_the_training_write_its_checkpoint(monkeypatch, tmp_path):
    """It comes while the task waits, in the same thread, which must not wait for itself."""
    submitit = pytest.importorskip("submitit")
    stand_in = f"bash -c 'trap \"touch {tmp_path}/saved; exit 75\" USR1; while true; do sleep 0.1; done'"
    monkeypatch.setattr(slurm, "train_command", lambda *_: stand_in)
    monkeypatch.setattr(submitit, "JobEnvironment", lambda: Namespace(node=0, job_id="7", hostnames=["here"]))
    task, again = slurm.TrainTask(Namespace()), []
    before = signal.signal(signal.SIGUSR2, lambda *_: again.append(task.checkpoint()))
    timer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGUSR2))
    timer.start()
    with pytest.raises(subprocess.CalledProcessError):
        task()
    signal.signal(signal.SIGUSR2, before)
    assert (tmp_path / "saved").exists() and isinstance(again[0].function, slurm.TrainTask)


def test_a_machine_without_slurm_says_so(toy_root, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    line = one_line_error(f"{COMMAND.format(logs=tmp_path)} -- --config-file F", toy_root)
    assert "no sbatch on this machine" in line
    line = one_line_error(f"{COMMAND.format(logs=tmp_path)} -- --config-file F".replace("sbatch", "submitit"), toy_root)
    assert "submit from a login node" in line or "submitit is not installed" in line
