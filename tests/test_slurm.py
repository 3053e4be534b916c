"""tools/slurm.py and the jobs of tables against stand-ins of SLURM's programs, which run what a cluster would."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from commands import ROOT, TIMEOUT, TINY, run
from trees import refused

from revisit.jobs.commands import TRAIN, Job, submit_jobs
from revisit.jobs.sbatch import BatchJob

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are Linux programs")
COMMAND = "python tools/slurm.py --num-machines 2 --num-gpus 1 --device cpu --output {logs}"
# Ports follow from the number of a job: two suites on one machine have others.
FIRST = os.getpid() % 10_000 + 1
# sbatch: keeps the scripts, starts each as job FIRST, FIRST + 1 ... on its nodes, in the background, and prints what
# SLURM prints. squeue: knows the jobs whose numbers are in a file.
STAND_INS = {
    "sbatch": f"""number=$(({FIRST} + $(ls $SLURM_TEST/script.* 2>/dev/null | wc -l)))
cat > $SLURM_TEST/script.$number
export SLURM_NNODES=$(sed -n "s/#SBATCH --nodes=//p" $SLURM_TEST/script.$number)
SLURM_JOB_ID=$number SLURM_JOB_NODELIST=127.0.0.[1-2] setsid bash $SLURM_TEST/script.$number > $SLURM_TEST/log 2>&1 &
echo $! > $SLURM_TEST/pid
echo "$number;here\"""",
    "scontrol": """if [ $1 = show ]; then echo 127.0.0.1; echo 127.0.0.2; else echo "$@" >> $SLURM_TEST/scontrol; fi""",
    "squeue": """grep -x "${@: -1}" $SLURM_TEST/queued 2>/dev/null && exit
echo "error: $(cat $SLURM_TEST/squeue_says 2>/dev/null || echo Invalid job id specified)" >&2; exit 1""",
    "srun": """while [[ $1 == --* ]]; do shift; done
trap 'kill -USR1 $(jobs -p); wait' USR1
for node in $(seq ${SLURM_NNODES:-2}); do SLURM_NODEID=$((node - 1)) "$@" & done
for job in $(jobs -p); do wait $job || code=$?; done; exit $code""",
}


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[Path]:
    """Two nodes of one machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TEST", str(tmp_path))
    yield tmp_path
    if (tmp_path / "pid").exists():
        with suppress(ProcessLookupError):  # it has ended, or a test that has failed leaves it
            os.killpg(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def wait(cluster: Path) -> str:
    pid = (cluster / "pid").read_text().strip()
    subprocess.run(["timeout", str(TIMEOUT), "tail", f"--pid={pid}", "-f", "/dev/null"], check=True)
    return (cluster / "log").read_text()


def test_a_job_whose_time_is_up_is_queued_again_and_resumes_when_it_is_submitted_again(cluster, toy_root, tmp_path):
    options = f"--config-file configs/toy/pretrain.yaml OUTPUT_DIR {tmp_path}/run {TINY} SEED 1"
    options += " KNN_EVAL.BANK '' DATASETS.TEST ()"  # no scores: the job's processes are slow enough to start
    command = f"{COMMAND.format(logs=tmp_path / 'logs')} -- {options} SOLVER.MAX_ITER"
    assert f"Submitted batch job {FIRST}\n" in run(f"{command} 100000", toy_root)
    metrics, end = tmp_path / "run/metrics.json", time.monotonic() + TIMEOUT
    while not metrics.exists() or not metrics.stat().st_size:
        assert time.monotonic() < end, (cluster / "log").read_text()[-3000:]
        time.sleep(0.2)
    os.kill(int((cluster / "pid").read_text()), signal.SIGUSR1)  # as --signal=B:USR1 asks for
    log = wait(cluster)
    assert (cluster / "scontrol").read_text() == f"requeue {FIRST}\n"
    stopped = re.search(r"stopped by SIGUSR1 after iteration (\d+)", log)
    assert stopped and list((tmp_path / "run").glob("model_*.pth")), log[-3000:]
    assert "2 gloo processes" in log
    again = f"{command} {int(stopped[1]) + 5}".replace("--num-machines 2", "--num-machines 1")
    assert f"Submitted batch job {FIRST + 1}\n" in run(again, toy_root)
    log = wait(cluster)
    assert f"resuming at iteration {int(stopped[1]) + 1}" in log and "one process" in log, log[-3000:]
    assert (tmp_path / "run/model_final.pth").exists()


@pytest.mark.parametrize(("second", "code", "said"), [("true", 0, "1 2 2 3 3"), ("exit 75", 75, "1 2 2")])
def test_commands_run_in_order_once_per_node_and_the_first_that_fails_ends_the_job(cluster, second, code, said):
    commands = (f"echo 2 >> {cluster}/said; {second}", f"echo 3 >> {cluster}/said")
    job = BatchJob("a job, seed 1", commands, cluster / "job.log", hours=1, gpus=0, cpus=1)
    (cluster / "said").write_text("1\n")
    done = subprocess.run(["bash"], input=job.script, text=True, env=os.environ | {"SLURM_JOB_ID": "7"})
    assert done.returncode == code and (cluster / "said").read_text().split() == said.split()


def test_print_submits_nothing_and_quotes_what_it_is_given(toy_root, tmp_path):
    text = run(
        f"python tools/slurm.py --output {tmp_path}/logs --num-machines 4 --num-gpus 8 --partition gpu --hours 48 "
        "--dry-run -- --config-file F "
        "DATASETS.TRAIN \"('a b',)\"",
        toy_root,
    )
    for line in ("--nodes=4", "--gpus-per-node=8", "--partition=gpu", "--time=48:00:00", "--cpus-per-task=64"):
        assert f"#SBATCH {line}\n" in text
    assert (tmp_path / "logs").is_dir()  # where sbatch would write, which makes no folder
    (command,) = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("step ")]
    words = shlex.split(command)
    assert words[0] == sys.executable and words[1] == str(ROOT / "tools/train_net.py") and "('a b',)" in words
    assert words[words.index("--machine-rank") + 1] == "$SLURM_NODEID" and '"tcp://$MASTER:$PORT"' in command
    assert subprocess.run(["bash", "-n"], input=text, text=True, cwd=ROOT).returncode == 0


def test_options_of_the_training_that_do_not_stand_after_two_dashes_are_explained(tmp_path):
    command = COMMAND.format(logs=tmp_path)
    assert "come after --, as in: -- --config-file" in run(f"{command} --config-file a.yaml", tmp_path, expect=2)


def test_a_tables_jobs_wait_for_those_they_need_and_trainings_alone_are_queued_again_when_time_is_up(cluster, capsys):
    def job(name: str, program: str, *needs: Job) -> Job:
        return Job(f"{name}, seed 1", (("-c", "pass"), (program, "--resume")), cluster / f"a {name}" / "r", needs=needs)

    done = job("done", "finished.py")
    trained = job("trained", TRAIN, done)
    done.claim()
    done.result.touch()
    submit_jobs([done, trained, job("judged", "run.py", done, trained)], hours=3, gpus=4, partition="gpu")
    lines = f"submitted as {FIRST}: trained, seed 1\nsubmitted as {FIRST + 1}: judged, seed 1\n"
    assert capsys.readouterr().out == lines
    first, second = ((cluster / f"script.{number}").read_text() for number in (FIRST, FIRST + 1))
    assert f"#SBATCH --output='{cluster}/a trained/job.log'\n" in first and "#SBATCH --partition=gpu\n" in first
    assert "--dependency" not in first and "#SBATCH --gpus-per-node=4\n" in first and "--signal=B:USR1@120" in first
    assert f"#SBATCH --dependency=afterok:{FIRST}\n" in second and "#SBATCH --gpus-per-node=1\n" in second
    assert "USR1" not in second and re.search(rf"&& step .*{sys.executable} run.py --resume", second)
    assert all("#SBATCH --requeue\n" in script and "--kill-on-invalid-dep=yes" in script for script in (first, second))


def test_a_result_that_slurm_has_made_counts_once_all_commands_have_ended_well(cluster, monkeypatch):
    folder, again = cluster / "a", cluster / "again"
    write = f"import pathlib, sys; pathlib.Path({str(folder / 'r')!r}).touch(); "
    write += f"sys.exit(0 if pathlib.Path({str(again)!r}).exists() else 3)"
    job = Job("a", (("-c", write), ("-c", f"open({str(cluster / 'later')!r}, 'x')")), folder / "r")
    job.claim()
    monkeypatch.setattr(BatchJob, "submit", run_at_once)
    submit_jobs([job], hours=1, gpus=1, partition=None)
    assert job.result.is_file() and not job.done
    again.touch()
    submit_jobs([job], hours=1, gpus=1, partition=None)
    assert job.done and (cluster / "later").is_file()


def test_what_an_earlier_call_has_submitted_is_submitted_again_only_once_it_has_left_the_queue(cluster, capsys):
    trained = Job("trained", (("-c", "pass"),), cluster / "a" / "r")
    judged = Job("judged", (("-c", "pass"),), cluster / "b" / "r", needs=(trained,))
    options = {"hours": 1, "gpus": 1, "partition": None}
    submit_jobs([trained], **options)
    (cluster / "queued").write_text(f"{FIRST}\n")
    submit_jobs([trained, judged], **options)
    lines = f"submitted as {FIRST}: trained\nalready submitted as {FIRST}: trained\nsubmitted as {FIRST + 1}: judged\n"
    assert capsys.readouterr().out == lines
    assert f"#SBATCH --dependency=afterok:{FIRST}\n" in (cluster / f"script.{FIRST + 1}").read_text()
    (cluster / "queued").unlink()
    submit_jobs([trained], **options)
    assert capsys.readouterr().out == f"submitted as {FIRST + 2}: trained\n"
    (cluster / "squeue_says").write_text("Unable to contact slurm controller")
    refused(f"whether job {FIRST + 2} still waits or runs: .*Unable to contact", submit_jobs, [trained], **options)


def test_the_signal_that_the_time_is_up_reaches_a_training_that_is_the_only_command(cluster, monkeypatch):
    program, started, saved = (cluster / name for name in ("train.py", "started", "saved"))
    save = f"lambda *_: sys.exit(open({str(saved)!r}, 'w').close())"
    start = f"open({str(started)!r}, 'w').close()"
    program.write_text(f"import signal, sys; signal.signal(signal.SIGUSR1, {save}); {start}; signal.pause()")
    monkeypatch.setattr("revisit.jobs.commands.TRAIN", str(program))
    job = Job("trained", ((str(program),),), cluster / "a" / "r")
    job.claim()
    submit_jobs([job], hours=1, gpus=1, partition=None)
    end = time.monotonic() + TIMEOUT
    while not started.exists():
        assert time.monotonic() < end, (cluster / "log").read_text()
        time.sleep(0.1)
    os.kill(int((cluster / "pid").read_text()), signal.SIGUSR1)  # as --signal=B:USR1 asks for
    wait(cluster)
    assert saved.exists()


def run_at_once(batch: BatchJob) -> str:
    """What the script does, in this process."""
    subprocess.run(" && ".join(batch.commands), shell=True)
    return "1"
