"""Jobs: command lines that leave one result file each, what they say before anything runs (the data that they read, how
long they train), and how they run: here a few at a time, or by SLURM; skipped when done."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from revisit.checkpoint.run_folder import checkpoints_of_run, iteration_of
from revisit.compat.old_options import current_words
from revisit.data.sources.catalog import datasets_root, get_records
from revisit.engine.data_checks import decide_by_images
from revisit.engine.merging import COMMAND_LINE, fitted, read_keys
from revisit.engine.setup import make_config
from revisit.errors import UserError, first_few
from revisit.files import write_whole
from revisit.jobs.record import Record
from revisit.jobs.sbatch import BatchJob, is_queued
from revisit.jobs.with_parent import start_child
from revisit.plugins import TRAIN, find_config, find_file

from detectron2.config import CfgNode

RECORD = "job.json"
AT_WORK = "job.at_work"  # from the start of the first command until the last one has ended well
SUBMITTED = "job.slurm"  # the number of the job that SLURM was given last
RECIPES = "recipes"
CONFIG_FILE = "--config-file"
LOCK_PATIENCE = 10.0  # s that a job waits for its folder while another process holds it


@dataclass(frozen=True)
class Job:
    """Commands, run one after the other by this Python, that end with ``result`` on disk.

    A result counts once every command has ended well: until then AT_WORK lies next to it, also where a command has
    failed, and the same commands run again.

    ``facts`` is what else the result depends on, such as the number of images. ``job.json`` next to the result
    keeps commands, facts and what the recipes state; a result of others is not taken for this job's. ``needs`` are
    jobs that come first, ``reads`` files of data that the commands name.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    result: Path
    facts: tuple[str, ...] = ()
    needs: tuple[Job, ...] = ()
    reads: tuple[Path, ...] = ()

    @property
    def done(self) -> bool:
        return self.result.is_file() and not self.at_work.exists()

    @property
    def at_work(self) -> Path:
        return self.result.parent / AT_WORK

    @property
    def log(self) -> Path:
        return self.result.parent / "job.log"

    @property
    def last_line(self) -> str:
        """What its commands said at the end, without ``error: ``: of a user's mistake what explains it."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else "no output"

    @property
    def state(self) -> str:
        """How far a job that is not done has come, for a table: never a number that could be taken for its result."""
        for needed in self.needs:
            if not needed.done:
                return needed.state
        if checkpoints := checkpoints_of_run(self.result.parent):
            return f"half-finished: iteration {iteration_of(checkpoints[0]) + 1}"
        return "begun" if self.log.is_file() else "not run"

    @property
    def owns_result(self) -> bool:
        """Whether what lies in the folder was made by these commands from these facts."""
        with contextlib.suppress(UserError, TypeError, AttributeError, KeyError):
            record = self._record
            before = {RECIPES: record.facts[RECIPES]} | record.before()  # that of earlier versions has none
            commands = [current_words(Path(words[0]).stem, words, warns=False) for words in before["commands"]]
            return not record.differences(before | {"commands": commands})
        return False

    @property
    def _record(self) -> Record:
        return Record(
            self.result.parent,
            {"commands": self.commands, "facts": self.facts, RECIPES: recipes_of(self.commands)},
            RECORD,
        )

    def claim(self) -> None:
        """Write the record. Raises UserError where it is there and says otherwise."""
        record = self._record
        record.folder.mkdir(parents=True, exist_ok=True)
        record.write()
        if not self.owns_result:
            raise UserError(f"{record.folder} was made {self._other()}: give another --output, or remove it")

    def _other(self) -> str:
        """How the record differs, in words."""
        before = self._record.before()
        others = [fact.rpartition(":")[0] for fact in self.facts if fact not in before.get("facts", ())]
        if others:
            return f"from other data ({first_few(others)})"
        digests = before.get(RECIPES, {})
        changed = [file for file, digest in recipes_of(self.commands).items() if digests.get(file, digest) != digest]
        if changed:
            return f"by a recipe that has changed since ({first_few(changed)})"
        return f"by other commands ({self.result.parent / RECORD})"

    def give_up(self) -> None:
        """Forget a job that failed before its first checkpoint and its result, so that it can be corrected."""
        if not (self.result.exists() or checkpoints_of_run(self.result.parent)):
            (self.result.parent / RECORD).unlink(missing_ok=True)
            self.at_work.unlink(missing_ok=True)


def with_needs(jobs: Iterable[Job]) -> list[Job]:
    """The jobs and those that they need, each once and after those that it needs itself."""
    by_result = {}
    for job in jobs:
        for needed in (*with_needs(job.needs), job):
            by_result.setdefault(needed.result, needed)
    return list(by_result.values())


def missing_inputs(job: Job) -> str:
    """What the job would not find on this machine: data sets, checkpoints of others; "" if nothing is missing."""
    missing = [str(path) for path in job.reads if not path.exists()]
    drawn = tuple(f"folder:{needed.result.parent}/" for needed in job.needs)
    for command in job.commands:
        if command[0] == "tools/convert_to_d2.py" and len(job.commands) == 1 and not Path(command[1]).is_file():
            missing.append(f"{command[1]}, a checkpoint of others")
        elif CONFIG_FILE in command:
            keys = _keys_of(command)
            bank = keys.get("KNN_EVAL.BANK")
            names = [*_data_sets(command), *filter(None, [bank])]
            missing += [name for name in names if _size(name) is None and not name.startswith(drawn)]
            folder = keys.get("LABEL_PROPAGATION.DATA")
            if folder and not (datasets_root() / folder).is_dir():
                missing.append(str(datasets_root() / folder))
    return ", ".join(dict.fromkeys(missing))


def recipes_of(commands: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """The recipes that commands name, each with the SHA-256 of the keys that it and its bases state."""
    digests = {}
    for file in [_recipe_in(command) for command in commands if CONFIG_FILE in command]:
        text = json.dumps(read_keys(find_config(file)), sort_keys=True, default=str)
        digests[file] = hashlib.sha256(text.encode()).hexdigest()
    return digests


def data_facts(command: tuple[str, ...]) -> tuple[str, ...]:
    """How many images the command's data sets have, those of them that are on disk and have a fixed name."""
    sizes = {name: _size(name) for name in _data_sets(command) if ":" not in name}
    return tuple(f"{name}: {size} images" for name, size in sizes.items() if size is not None)


def cost_of(job: Job) -> str:
    """The training's iterations, ``92,400 iterations of 256 images``, or what else the job does, in words."""
    cfg = planned_training(job)
    if cfg is None:
        command = job.commands[0]
        return {"-c": "a plot"}.get(command[0], "frozen features" if CONFIG_FILE in command else command[0])
    if cfg.SOLVER.MINUTES:
        return f"{cfg.SOLVER.MINUTES:g} minutes"
    if cfg.SOLVER.MAX_ITER <= 0:
        return f"{cfg.SOLVER.EPOCHS} epochs"
    return f"{cfg.SOLVER.MAX_ITER:,} iterations of {cfg.SOLVER.IMS_PER_BATCH} images"


def planned_training(job: Job) -> CfgNode | None:
    """The config of the training that a job begins with, None of other jobs. Its length is decided, unless it is one in
    time or its images are not known.

    Data sets that are not on disk count with their published sizes.
    """
    command = job.commands[0]
    if command[0] != TRAIN:
        return None
    options = _options(command)
    for key in ("MODEL.WEIGHTS", "OUTPUT_DIR"):  # neither is there yet
        options.pop(key, None)
    words = list(itertools.chain.from_iterable(options.items()))
    cfg = make_config(_recipe_in(command), words, for_here=False)
    if cfg.SOLVER.MAX_ITER <= 0 and not cfg.SOLVER.MINUTES:
        with contextlib.suppress(UserError):
            decide_by_images(cfg, assume_missing=True, looked_at=False)
    return cfg


def _options(command: tuple[str, ...]) -> dict[str, str]:
    """The KEY VALUE pairs that end a command; of a key given twice the last value counts."""
    backwards = zip(command[-2::-2], command[::-2], strict=False)
    return dict(reversed(list(itertools.takewhile(lambda pair: pair[0].isupper(), backwards))))


def _data_sets(command: tuple[str, ...]) -> list[str]:
    stated = _keys_of(command)
    names = (fitted(key, stated.get(key, ()), (), COMMAND_LINE) for key in ("DATASETS.TRAIN", "DATASETS.TEST"))
    return list(dict.fromkeys(itertools.chain.from_iterable(names)))


def _keys_of(command: tuple[str, ...]) -> dict[str, object]:
    return {**_config(command), **_options(command)}


def _config(command: tuple[str, ...]) -> dict[str, object]:
    return _stated(_recipe_in(command))


def _recipe_in(command: tuple[str, ...]) -> str:
    return command[command.index(CONFIG_FILE) + 1]


@functools.cache  # hundreds of commands have few files
def _stated(file: str) -> dict[str, object]:
    return read_keys(find_config(file))


@functools.cache
def _size(name: str) -> int | None:
    try:
        return len(get_records(name))
    except UserError:
        return None


def run_jobs(jobs: list[Job], parallel: int, result_of: Callable[[Job], str] = lambda job: "") -> None:
    """Run those of claimed jobs that are not done, ``parallel`` at a time, one thread each; progress goes to stdout,
    with what ``result_of`` says of a job that is done.

    Each job's output goes to ``job.log`` next to its result. When this process is interrupted, terminated or loses
    its terminal, it stops the running jobs and waits for them; the same call resumes them from their checkpoints. Where
    it is killed, they get SIGTERM on Linux, and the same call waits LOCK_PATIENCE for them to end. Where one has
    failed, the others finish, and a UserError names its log.
    """
    waiting = [job for job in jobs if not job.done]
    progress = _Progress(len(waiting), result_of)
    print(f"{len(jobs)} jobs, {len(jobs) - progress.total} done before, {parallel} at a time", flush=True)
    running = []
    try:
        with _stop_signals() as received:
            while waiting or running:
                for job in _ready(waiting)[: parallel - len(running)]:
                    waiting.remove(job)
                    running.append(_RunningJob(job))
                if not running:
                    break  # what waits needs what has failed
                time.sleep(0.05)
                if received:
                    raise KeyboardInterrupt
                for run in [run for run in running if run.ended()]:
                    running.remove(run)
                    progress.report(run, len(running))
    finally:
        _stop(running)
    progress.check(waiting)


def _ready(waiting: Iterable[Job]) -> list[Job]:
    """Those whose needs are done."""
    return [job for job in waiting if all(needed.done for needed in job.needs)]


def _stop(running: Iterable[_RunningJob]) -> None:
    """Ask all to end, and wait for them."""
    for run in running:
        run.terminate()
    for run in running:
        run.wait()


class _Progress:
    """The jobs that have ended, of ``total`` ones, and the line for each."""

    def __init__(self, total: int, result_of: Callable[[Job], str]):
        self.total = total
        self._result_of = result_of
        self._ended: list[Job] = []
        self._start = time.perf_counter()

    def report(self, run: _RunningJob, at_work: int) -> None:
        """Enter one that has ended; print how it went and how long the others will take, so many of them at work."""
        self._ended.append(run.job)
        print(
            f"[{len(self._ended)}/{self.total}] {run.job.name}: {self._outcome(run)}{self._rest(at_work)}", flush=True
        )

    def _outcome(self, run: _RunningJob) -> str:
        if not run.job.done:
            written = f" after it wrote {run.job.result.name}" if run.job.result.is_file() else ""
            return f"FAILED{written}: {run.job.last_line}"
        seconds = f"{time.perf_counter() - run.start:.0f} s"
        result = self._result_of(run.job)
        return f"{seconds}, {result}" if result else seconds

    def _rest(self, at_work: int) -> str:
        others = self.total - len(self._ended)
        if others == 0:
            return ""
        done = len(self._ended) + at_work / 2  # those at work are half done, taken together
        seconds = (time.perf_counter() - self._start) * (self.total - done) / done
        return f"; {seconds / 60:.0f} minutes for the other {others}"

    def check(self, waiting: Sequence[Job]) -> None:
        """Raises UserError where a job has failed; those that need it are still ``waiting``."""
        failed = [str(job.log) for job in self._ended if not job.done]
        assert failed or not waiting, f"{waiting[0].name} needs a job that is not among these"
        if failed:
            after = f"; {len(waiting)} that need them were not run" if waiting else ""
            raise UserError(f"{len(failed)} of {self.total} jobs failed; their output is in {', '.join(failed)}{after}")


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collects the signals that ask this process to end, so that none comes between a job's start and its entry."""
    received = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _RunningJob:
    """A job at work, alone in its folder; each command has a process group, so that all of it can be stopped.

    While another process holds the folder, the job waits for LOCK_PATIENCE: where the last call was killed, its
    training may still be writing a checkpoint.
    """

    def __init__(self, job: Job):
        self.job = job
        self.start = time.perf_counter()
        self._commands = iter(job.commands)
        self._process: subprocess.Popen | None = None  # none before the folder is ours
        self._log = open(job.log, "ab", buffering=0)  # noqa: SIM115  (its lock is the folder's)
        self._take_folder()
        if self._process is None:
            print(
                f"{job.name}: another process works in {job.result.parent}, waiting {LOCK_PATIENCE:.0f} s for its end",
                flush=True,
            )

    def _take_folder(self) -> None:
        """Begin once the folder is free. Raises UserError if it is not after LOCK_PATIENCE."""
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the last process of the job ends
        except BlockingIOError as error:
            if time.perf_counter() - self.start < LOCK_PATIENCE:
                return
            self._log.close()
            raise UserError(f"{self.job.name} is being run by another process ({self.job.log})") from error
        self.job.at_work.touch()
        self._run(next(self._commands))

    def _run(self, command: tuple[str, ...]) -> None:
        self._process = start_child(
            [sys.executable, find_file(command[0]), *command[1:]],
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # more busy threads than cores cost far more than they give
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ended(self) -> bool:
        """Whether the last command has ended, or one has failed; the first and the next one start here."""
        if self._process is None:
            self._take_folder()
            return False
        code = self._process.poll()
        if code is None:
            return False
        command = next(self._commands, None) if code == 0 else None
        if command:
            self._run(command)
            return False
        if code == 0:
            self.job.at_work.unlink(missing_ok=True)
        if not self.job.done:
            self.job.give_up()
        self._log.close()
        return True

    def terminate(self) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def wait(self) -> None:
        """Until the command has ended; the folder is free then."""
        if self._process:
            self._process.wait()
        self._log.close()


def submit_jobs(jobs: list[Job], *, hours: int, gpus: int, partition: str | None) -> None:
    """Submit those of claimed jobs that are not done to SLURM, unless they wait or run there since an earlier call; a
    job starts when those that it needs have ended well.

    A training whose ``hours`` are up, and a job that is preempted, are queued again and resume from their checkpoints.
    ``jobs`` are each after those that it needs; ``gpus`` are a training's, others take one.
    """
    numbers = {}
    for job in (job for job in jobs if not job.done):
        submitted = job.result.parent / SUBMITTED
        number = submitted.read_text() if submitted.is_file() else ""
        if number and is_queued(number):
            print(f"already submitted as {number}: {job.name}", flush=True)
        else:
            after = tuple(numbers[needed.result] for needed in job.needs if needed.result in numbers)
            number = _batch_job(job, hours, gpus, partition, after).submit()
            write_whole(submitted, number)
            print(f"submitted as {number}: {job.name}", flush=True)
        numbers[job.result] = number


def _batch_job(job: Job, hours: int, gpus: int, partition: str | None, after: tuple[str, ...]) -> BatchJob:
    trains = any(command[0] == TRAIN for command in job.commands)
    commands = [shlex.join([sys.executable, find_file(command[0]), *command[1:]]) for command in job.commands]
    at_work = shlex.quote(str(job.at_work))
    # Each in a step of its own: the shell of a step would not hand on SLURM's signal to one of several commands.
    commands = [f"touch {at_work}", *commands, f"rm -f {at_work}"]
    gpus = gpus if trains else 1
    return BatchJob(
        job.name,
        tuple(commands),
        job.log,
        hours,
        gpus,
        cpus=8 * gpus,
        partition=partition,
        resumes=trains,
        after=after,
    )
