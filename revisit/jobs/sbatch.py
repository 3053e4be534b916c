"""The one writer of SLURM's batch scripts: jobs that are queued again and resume, and jobs that wait for others."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from revisit.errors import UserError, expect

FIRST_PORT, NUM_PORTS = 20000, 20000  # a job takes the port of its number
WARNING = 120  # seconds between SLURM's signal and the end of a job

_SETUP = f"""export MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))
"""
_TIME_IS_UP = f"""# The time is up: the training writes a checkpoint and ends, and the same job is queued once more.
time_is_up() {{
    kill -USR1 "$STEP"
    for second in $(seq {WARNING - 30}); do kill -0 "$STEP" 2>/dev/null || break; sleep 1; done
    scontrol requeue "$SLURM_JOB_ID"
}}
trap time_is_up USR1
"""
_STEP = """step() {{
    srun --kill-on-bad-exit=1 --cpus-per-task={cpus} bash -c "$1" &
    STEP=$!
    wait "$STEP"
}}
"""


@dataclass(frozen=True)
class BatchJob:
    """A job of SLURM, which is queued again when it is preempted or a node of it fails.

    Its ``commands`` of the shell are started once per node, one after the other as long as they end with exit code 0;
    $SLURM_NODEID, $MASTER (the first node's name) and $PORT (a port of this job's own) are set.
    """

    name: str
    commands: tuple[str, ...]
    log: Path  # of all attempts; %j stands for the job's number
    hours: int
    gpus: int  # per node; 0 asks for none
    cpus: int  # per node
    nodes: int = 1
    partition: str | None = None  # None: the cluster's own choice
    resumes: bool = True  # when the hours are up it gets SIGUSR1, to write a checkpoint, and is queued again
    after: tuple[str, ...] = ()  # numbers of jobs that must end well before this one starts, else it is cancelled

    @property
    def script(self) -> str:
        """What sbatch runs on the first node."""
        options = {
            "job-name": self.name,
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "gpus-per-node": self.gpus,
            "cpus-per-task": self.cpus,
            "time": f"{self.hours}:00:00",
            "partition": self.partition,
            "output": self.log,
            "open-mode": "append",
            "signal": self.resumes and f"B:USR1@{WARNING}",
            "dependency": self.after and f"afterok:{':'.join(self.after)}",
            "kill-on-invalid-dep": "yes",
        }
        asked = [f"#SBATCH --{name}={quote(str(value))}\n" for name, value in options.items() if value]
        steps = " && ".join(f"step {quote(command)}" for command in self.commands)
        parts = (
            "#!/bin/bash\n",
            *asked,
            "#SBATCH --requeue\n",
            f"cd {quote(os.getcwd())}\n",  # names of files may be relative
            _SETUP,
            _TIME_IS_UP if self.resumes else "",
            _STEP.format(cpus=self.cpus),
            f"{steps}\n",
        )
        return "".join(parts)

    def submit(self) -> str:
        """Hand the script to sbatch; returns the job's number. Raises UserError where there is none, or it refuses."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        done = _slurm("sbatch", "--parsable", stdin=self.script)
        expect(not done.returncode, f"sbatch refused the job: {done.stderr.strip()}")
        return done.stdout.strip().partition(";")[0]


def is_queued(number: str) -> bool:
    """Whether a job of this number waits or runs. Raises UserError where SLURM does not say."""
    done = _slurm("squeue", "--noheader", "--jobs", number)
    if done.returncode and "Invalid job id" not in done.stderr:  # one that ended long ago
        raise UserError(f"squeue does not say whether job {number} still waits or runs: {done.stderr.strip()}")
    return not done.returncode and bool(done.stdout.strip())


def _slurm(*words: str, stdin: str = "") -> subprocess.CompletedProcess:
    """A program of SLURM's, when it has ended. Raises UserError where there is none."""
    try:
        return subprocess.run(words, input=stdin, text=True, capture_output=True)
    except FileNotFoundError as error:
        raise UserError(f"no {words[0]} on this machine: submit from a login node") from error
