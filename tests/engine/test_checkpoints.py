"""Checkpoints: which are written, which stay, and what a damaged one or a full disk does to a run."""

import logging
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from runs import assert_same, load, run_config, train, train_for_module

from revisit.checkpoint.run_folder import (
    checkpoints_of_run,
    remove_outdated,
    seed_of_run,
    set_aside_earlier_run,
    tidy_up,
)
from revisit.engine.hooks import CollapseAlarm, ReadErrors
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.errors import UserError

from detectron2.engine import HookBase

OPTIONS = ("SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 2)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("model_*"))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def whole(toy_root, tmp_path_factory) -> Path:
    """A run of 8 iterations that nothing happened to, with all of its checkpoints."""
    return train_for_module(toy_root, tmp_path_factory.mktemp("whole"), *OPTIONS, "SOLVER.CHECKPOINTS_KEPT", 0)


def copy(whole: Path, output: Path, *names: str) -> Path:
    output.mkdir()
    for name in names:
        (output / name).write_bytes((whole / name).read_bytes())
    return output


def resume(output: Path, *options: object) -> PretrainTrainer:
    return train(output, *OPTIONS, *options, resume=True)


def test_the_newest_and_every_fifth_stay(toy_datasets, tmp_path):
    keep = ("SOLVER.CHECKPOINTS_KEPT", 2, "SOLVER.CHECKPOINT_KEPT_EVERY", 5)
    train(tmp_path, "SOLVER.MAX_ITER", 13, "SOLVER.CHECKPOINT_PERIOD", 1, *keep)
    kept = [f"model_{iteration:07d}.pth" for iteration in (4, 9, 11, 12)]
    assert names(tmp_path) == [*kept, "model_final.pth"]
    assert (tmp_path / "last_checkpoint").read_text() == "model_0000012.pth"


class KilledWhileWriting(HookBase):
    """Stands for SIGKILL: no handler runs, and nothing is written any more."""

    def __init__(self, name: str):
        self._name = name

    def before_train(self) -> None:
        save = self.trainer.checkpointer.save

        def killed(name: str, **kwargs: object) -> None:
            if name == self._name:
                raise KeyboardInterrupt
            save(name, **kwargs)

        self.trainer.checkpointer.save = killed


@pytest.mark.parametrize(("name", "start"), [("model_final", 6), ("model_0000007", 8)])
def test_a_run_killed_at_its_very_end_has_its_result_after_a_resume(toy_datasets, whole, tmp_path, name, start):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, *OPTIONS, hook=KilledWhileWriting(name))
    assert resume(tmp_path).start_iter == start
    assert_same(load(tmp_path / "model_final.pth")["model"], load(whole / "model_final.pth")["model"])


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_it_taken(toy_datasets, whole, tmp_path, caplog):
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "model_0000005.pth")
    flip_a_bit(output / "model_0000005.pth")
    with caplog.at_level(logging.ERROR):
        assert resume(output).start_iter == 4
    (record,) = [record for record in caplog.records if "DAMAGED CHECKPOINT" in record.message]
    assert "model_0000005.pth" in record.message and "the checksum differs" in record.message
    assert_same(load(output / "model_final.pth")["model"], load(whole / "model_final.pth")["model"])


@pytest.mark.parametrize("damage", [flip_a_bit, Path.unlink])
def test_a_finished_runs_damaged_or_missing_result_comes_back(toy_datasets, whole, tmp_path, damage):
    output = copy(whole, tmp_path / "run", "model_0000007.pth", "model_final.pth")
    damage(output / "model_final.pth")
    assert resume(output).start_iter == 8
    assert_same(load(output / "model_final.pth"), load(whole / "model_final.pth"))


def test_checkpoints_that_a_run_came_back_from_do_not_push_out_new_ones(tmp_path):
    for iteration in (4, 5, 8, 9):  # 8 and 9 are damaged, the run went back to 4 and has written 5
        (tmp_path / f"model_{iteration:07d}.pth").write_bytes(b"")
    remove_outdated(tmp_path, 5, newest=1, every=0)
    assert names(tmp_path) == [f"model_{iteration:07d}.pth" for iteration in (5, 8, 9)]


@pytest.mark.parametrize("what", ["truncated", "converted weights"])
def test_a_final_file_that_is_no_whole_checkpoint_is_passed_over(toy_datasets, whole, tmp_path, what):
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "model_final.pth")
    if what == "truncated":
        (output / "model_final.pth").write_bytes((whole / "model_final.pth").read_bytes()[:5000])
    else:
        torch.save({"model": load(whole / "model_final.pth")["model"]}, output / "model_final.pth")
    assert resume(output).start_iter == 4


def test_without_any_whole_checkpoint_nothing_starts_over(toy_datasets, whole, tmp_path):
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "model_0000005.pth")
    for path in output.iterdir():
        flip_a_bit(path)
    with pytest.raises(UserError, match="none of the 2 checkpoints"):
        resume(output)


def test_the_last_iteration_counts_not_the_note_of_it(toy_datasets, whole, tmp_path):
    """Killed between the checkpoint and the note, or copied without it."""
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "model_0000005.pth")
    (output / "last_checkpoint").write_text("model_0000003.pth")
    assert resume(output).start_iter == 6


def test_a_longer_run_resumes_from_the_later_of_periodic_and_final(whole, tmp_path):
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "model_final.pth")  # the final one is iteration 7
    content = load(whole / "model_0000005.pth")
    torch.save(content | {"iteration": 9}, output / "model_0000009.pth")
    assert [path.name for path in checkpoints_of_run(output)] == [
        *("model_0000009.pth", "model_final.pth", "model_0000003.pth")
    ]


@pytest.mark.parametrize("metrics", ["", '{"iteration": 1}\n', '{"iteration": 1}\n{"itera'])
def test_what_a_killed_process_was_writing_is_removed_or_ended(tmp_path, metrics):
    for name in ("model_0000003.pth.tmp", "model_0000001.pth"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "metrics.json").write_text(metrics)
    tidy_up(tmp_path)
    assert names(tmp_path) == ["model_0000001.pth"]
    assert (tmp_path / "metrics.json").read_text() == metrics + "\n" * metrics.endswith("itera")


def test_a_new_start_sets_an_earlier_run_aside(whole, tmp_path):
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "metrics.json", "last_checkpoint")
    for name in ("log.txt", "neighbours_0000003.png"):
        (output / name).write_text("")
    assert set_aside_earlier_run(output) == output / "earlier_run_1"
    assert sorted(p.name for p in output.iterdir()) == ["earlier_run_1", "log.txt"]
    for name in ("model_0000003.pth", "metrics.json", "neighbours_0000003.png"):
        assert (output / "earlier_run_1" / name).exists()
    assert set_aside_earlier_run(output) is None
    copy(whole, tmp_path / "other", "model_0000003.pth")
    (tmp_path / "other/model_0000003.pth").rename(output / "model_0000003.pth")
    assert set_aside_earlier_run(output) == output / "earlier_run_2"


def test_the_seed_of_a_run_is_in_its_checkpoints_and_else_in_its_config(whole, tmp_path):
    assert seed_of_run(whole) == 7
    (tmp_path / "config.yaml").write_text("SEED: 11\nSOLV")
    assert seed_of_run(tmp_path) == -1  # torn
    (tmp_path / "config.yaml").write_text("SEED: 11\n")
    assert seed_of_run(tmp_path) == 11


@contextmanager
def disk_full_for_files_above(num_bytes: int):
    """The system refuses to let files grow beyond this, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class FullDisk(HookBase):
    """The disk is full from one iteration up to another."""

    def __init__(self, first: int, last: int):
        self._first, self._last = first, last
        self._full = disk_full_for_files_above(100_000)

    def before_step(self) -> None:
        if self.trainer.iter == self._first:
            self._full.__enter__()

    def after_step(self) -> None:
        if self.trainer.iter == self._last:
            self._full.__exit__(None, None, None)

    after_train = after_step


def test_a_full_disk_leaves_old_checkpoints_and_the_run_alive(toy_datasets, whole, tmp_path, caplog):
    with caplog.at_level(logging.ERROR):
        train(tmp_path, *OPTIONS, "SOLVER.CHECKPOINTS_KEPT", 0, hook=FullDisk(3, 5))
    said = [record.message for record in caplog.records if "NO CHECKPOINT" in record.message]
    assert len(said) == 2 and "model_0000003.pth could not be written" in said[0]
    assert names(tmp_path) == ["model_0000001.pth", "model_0000007.pth", "model_final.pth"]
    assert_same(load(tmp_path / "model_final.pth")["model"], load(whole / "model_final.pth")["model"])


@pytest.mark.parametrize("stop", [True, False])
def test_a_run_ends_in_one_line_where_it_must_not_continue_without_a_checkpoint(toy_datasets, tmp_path, stop):
    """By its key at once, and else at the end, when the result cannot be written."""
    options = (*OPTIONS, "SOLVER.STOP_WITHOUT_CHECKPOINT", stop)
    with disk_full_for_files_above(2**40), pytest.raises(UserError, match="free some space") as error:
        train(tmp_path, *options, hook=FullDisk(2, 99))
    assert ("model_0000003" if stop else "model_final") in str(error.value)
    assert names(tmp_path) == ["model_0000001.pth"]


def test_another_number_of_processes_is_said(toy_datasets, whole, tmp_path, caplog):
    trainer = PretrainTrainer(run_config(tmp_path))
    state = load(whole / "model_0000003.pth")["trainer"]
    with caplog.at_level(logging.WARNING):
        trainer.load_state_dict(state | {"world_size": 2})
    assert "resuming on 1 processes what 2 began: the order of the data continues" in caplog.text


def test_hooks_resume_where_they_were():
    errors, again = (ReadErrors(global_batch=8, iterations_per_epoch=100) for _ in range(2))
    for n in range(3):
        errors.observe(["x.jpg: bad"] * n)
    errors.gather_state()
    again.load_state_dict(errors.state_dict())
    assert again.state_dict() == {"steps": 3, "failures": 3}
    alarm = CollapseAlarm()
    alarm.load_state_dict({"warned": True})
    assert alarm.state_dict() == {"warned": True}
