"""Checkpoints: which are written, which stay, and what a damaged one or a full disk does to a run."""

import logging
import resource
from pathlib import Path

import pytest
import torch
from runs import assert_same, load, train, train_for_module
from trees import refused

from revisit.checkpoint import run_folder
from revisit.engine.setup import make_config
from revisit.errors import UserError

from detectron2.engine import HookBase

OPTIONS = ("SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 2, "VIEWS.NUM_SMALL", 0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("model_*"))


@pytest.fixture(scope="module")
def whole(toy_root, tmp_path_factory) -> Path:
    """A run of 8 iterations that nothing happened to, with all of its checkpoints."""
    return train_for_module(toy_root, tmp_path_factory.mktemp("whole"), *OPTIONS, "SOLVER.CHECKPOINTS_KEPT", 0)


def copy(whole: Path, output: Path, *names: str) -> Path:
    output.mkdir()
    for name in names:
        (output / name).write_bytes((whole / name).read_bytes())
    return output


def assert_same_model(output: Path, whole: Path) -> None:
    assert_same(load(output / "model_final.pth")["model"], load(whole / "model_final.pth")["model"])


def test_the_newest_and_every_fifth_stay(toy_datasets, tmp_path):
    keep = ("SOLVER.CHECKPOINTS_KEPT", 2, "SOLVER.CHECKPOINT_KEPT_EVERY", 5, "VIEWS.NUM_SMALL", 0)
    train(tmp_path, "SOLVER.MAX_ITER", 13, "SOLVER.CHECKPOINT_PERIOD", 1, *keep)
    kept = [f"model_{iteration:07d}.pth" for iteration in (4, 9, 11, 12)]
    assert names(tmp_path) == [*kept, "model_final.pth"]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def convert(path: Path) -> None:
    torch.save({"model": load(path)["model"]}, path)


@pytest.mark.parametrize(
    ("found", "newest", "damage", "start"),
    [
        (3, "model_0000005.pth", flip_a_bit, 4),
        (3, "model_final.pth", truncate, 4),
        (3, "model_final.pth", convert, 4),
        (5, "model_final.pth", flip_a_bit, 6),
        (5, "model_final.pth", Path.unlink, 6),
    ],
)
def test_a_run_resumes_from_its_last_whole_checkpoint(
    toy_datasets, whole, tmp_path, caplog, found, newest, damage, start
):
    output = copy(whole, tmp_path / "run", f"model_{found:07d}.pth", newest)
    damage(output / newest)
    with caplog.at_level(logging.ERROR):
        assert train(output, *OPTIONS, resume=True).start_iter == start
    said = [record.message for record in caplog.records if "DAMAGED CHECKPOINT" in record.message]
    if damage is flip_a_bit:
        assert len(said) == 1 and newest in said[0] and "the checksum differs" in said[0]
    assert_same(load(output / "model_final.pth"), load(whole / "model_final.pth"))


def test_without_any_whole_checkpoint_nothing_starts_over(toy_datasets, whole, tmp_path):
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "model_0000005.pth")
    for path in output.iterdir():
        flip_a_bit(path)
    refused("none of the 2 checkpoints", train, output, *OPTIONS, resume=True)


def test_a_checkpoint_with_other_tensors_is_refused_by_the_first_of_them(toy_datasets, whole, tmp_path):
    path = copy(whole, tmp_path / "run", "model_0000003.pth") / "model_0000003.pth"
    content = load(path)
    del content["model"]["queue.keys"]
    torch.save(content, path)
    refused("in 1 tensors, the first queue.keys: absent there", train, path.parent, *OPTIONS, resume=True)


def test_checkpoints_that_a_run_came_back_from_do_not_push_out_new_ones(tmp_path):
    for iteration in (4, 5, 8, 9):  # 8 and 9 are damaged, the run went back to 4 and has written 5
        (tmp_path / f"model_{iteration:07d}.pth").write_bytes(b"")
    run_folder.remove_outdated(tmp_path, 5, newest=1, every=0)
    assert names(tmp_path) == [f"model_{iteration:07d}.pth" for iteration in (5, 8, 9)]


def test_a_longer_run_resumes_from_the_later_of_periodic_and_final(whole, tmp_path):
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "model_final.pth")  # the final one is iteration 7
    torch.save(load(whole / "model_0000005.pth") | {"iteration": 9}, output / "model_0000009.pth")
    found = [path.name for path in run_folder.checkpoints_of_run(output)]
    assert found == ["model_0000009.pth", "model_final.pth", "model_0000003.pth"]


@pytest.mark.parametrize("metrics", ["", '{"iteration": 1}\n', '{"iteration": 1}\n{"itera'])
def test_what_a_killed_process_was_writing_is_removed_or_ended(tmp_path, metrics):
    for name in ("model_0000003.pth.tmp", "model_0000003.0123abcd.pth.tmp", "model_0000001.pth"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "metrics.json").write_text(metrics)
    run_folder.tidy_up(tmp_path)
    assert names(tmp_path) == ["model_0000001.pth"]
    assert (tmp_path / "metrics.json").read_text() == metrics + "\n" * metrics.endswith("itera")


def test_a_new_start_sets_an_earlier_run_aside_with_its_pictures_and_its_ids_at_services(whole, tmp_path):
    output = copy(whole, tmp_path / "run", "model_0000003.pth", "metrics.json")
    pictures_and_ids = ("neighbours_0000003.png", "views.png", "tracked_runs.json")
    for name in ("log.txt", *pictures_and_ids):
        (output / name).write_text("")
    assert run_folder.set_aside_earlier_run(output) == output / "earlier_run_1"
    assert sorted(p.name for p in output.iterdir()) == ["earlier_run_1", "log.txt"]
    for name in ("model_0000003.pth", "metrics.json", *pictures_and_ids):
        assert (output / "earlier_run_1" / name).exists()
    assert run_folder.set_aside_earlier_run(output) is None
    (output / "model_0000003.pth").write_bytes((whole / "model_0000003.pth").read_bytes())
    assert run_folder.set_aside_earlier_run(output) == output / "earlier_run_2"
    assert run_folder.last_set_aside(output) == output / "earlier_run_2" and run_folder.last_set_aside(whole) is None
    for name in ("metrics.json", "config.yaml"):  # of a run that ended before its first checkpoint
        (output / name).write_text("")
    assert run_folder.set_aside_earlier_run(output) == output / "earlier_run_3"
    assert sorted(path.name for path in (output / "earlier_run_3").iterdir()) == ["config.yaml", "metrics.json"]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_new_start_that_is_killed_as_it_sets_an_earlier_run_aside_leaves_nothing_to_the_next(
    has_checkpoint, tmp_path, monkeypatch
):
    files = ["best.json", "config.yaml", "environment.json", "evaluation.json", "metrics.json", "tracked_runs.json"]
    files += ["model_best.pth", "model_0000003.pth"] if has_checkpoint else []
    rename = Path.rename
    for moved in range(len(files)):
        output = tmp_path / str(moved)
        output.mkdir()
        for name in files:
            (output / name).write_text("")
        left = iter(range(moved))
        monkeypatch.setattr(Path, "rename", lambda path, to, left=left: (next(left), rename(path, to)))
        with pytest.raises(StopIteration):
            run_folder.set_aside_earlier_run(output)
        monkeypatch.setattr(Path, "rename", rename)
        run_folder.set_aside_earlier_run(output)
        assert all(path.is_dir() for path in output.iterdir())


def test_the_settings_of_a_run_are_in_its_checkpoints_and_else_in_its_config(whole, tmp_path):
    assert run_folder.earlier_part(tmp_path) == ({}, 0, 0)
    settings, done, images = run_folder.earlier_part(whole)
    assert (settings["SEED"], settings["SOLVER.IMS_PER_BATCH"]) == (7, 8)
    assert (done, images) == (8, 60)
    for text, found in (("SEED: 11\nSOLV", {}), ("SEED: 11\n", {"SEED": 11}), ("torn", {})):
        (tmp_path / "config.yaml").write_text(text)
        assert run_folder.earlier_part(tmp_path).settings == found


def test_a_run_that_resumes_looks_once_into_its_newest_checkpoint_for_what_it_has_decided(whole, tmp_path, monkeypatch):
    output, opened, peek = copy(whole, tmp_path / "out", "model_0000005.pth"), [], run_folder.peek
    monkeypatch.setattr(run_folder, "peek", lambda path: opened.append(path.name) or peek(path))
    cfg = make_config("configs/toy/pretrain.yaml", ["OUTPUT_DIR", str(output), "MODEL.DEVICE", "cpu"], resume=True)
    assert cfg.SEED == 7 and opened == ["model_0000005.pth"]


class FullDisk(HookBase):
    """From one iteration up to another the system refuses to let files grow, as a full disk does."""

    def __init__(self, first: int, last: int):
        self._first, self._last = first, last
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def before_step(self) -> None:
        if self.trainer.iter == self._first:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, self._limits[1]))

    def after_step(self) -> None:
        if self.trainer.iter == self._last:
            self.after_train()

    def after_train(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


def test_a_full_disk_leaves_old_checkpoints_and_the_run_alive(toy_datasets, whole, tmp_path, caplog):
    with caplog.at_level(logging.ERROR):
        train(tmp_path, *OPTIONS, "SOLVER.CHECKPOINTS_KEPT", 0, hook=FullDisk(3, 5))
    said = [record.message for record in caplog.records if "NO CHECKPOINT" in record.message]
    assert len(said) == 2 and "model_0000003.pth could not be written" in said[0]
    assert names(tmp_path) == ["model_0000001.pth", "model_0000007.pth", "model_final.pth"]
    assert_same_model(tmp_path, whole)


@pytest.mark.parametrize(("stop", "first"), [(True, "model_0000003"), (False, "model_final")])
def test_a_run_ends_in_one_line_where_it_must_not_continue_without_a_checkpoint(toy_datasets, tmp_path, stop, first):
    """By its key at once, and else at the end, when the result cannot be written."""
    with pytest.raises(UserError, match=f"{first}.*free some space"):
        train(tmp_path, *OPTIONS, "SOLVER.STOP_WITHOUT_CHECKPOINT", stop, hook=FullDisk(2, 99))
    assert names(tmp_path) == ["model_0000001.pth"]


def test_a_run_of_ten_million_iterations_has_its_checkpoints(tmp_path):
    for iteration in (9_999_999, 10_000_000, 10_999_999):
        (tmp_path / f"model_{iteration:07d}.pth").touch()
    names = [path.name for path in run_folder.checkpoints_of_run(tmp_path)]
    assert names == ["model_10999999.pth", "model_10000000.pth", "model_9999999.pth"]
    assert set(run_folder.outdated(names, 10_999_999, newest=1, every=0)) == set(names[1:])


def test_a_run_of_detectron2s_own_trainer_is_not_resumed(tmp_path):
    torch.save({"model": {}, "iteration": 5, "trainer": {"_trainer": {}}}, tmp_path / "model_0000005.pth")
    refused("has a run of Detectron2's own trainer, which has no config", run_folder.earlier_part, tmp_path)


def test_scores_of_a_data_set_with_a_hyphen_in_its_name_are_in_the_log(tmp_path, caplog):
    results = {"coco:/data/my-photos:a.json": {"bbox": {"AP": 41.5, "AP-cat": 3.0}}}
    with caplog.at_level("INFO"):
        run_folder.write_results(tmp_path, results)
    assert "AP 41.50" in caplog.text and "AP-cat" not in caplog.text


def test_an_evaluation_without_any_score_says_so(tmp_path, caplog):
    with caplog.at_level("INFO"):
        run_folder.write_results(tmp_path, {"bbox": {"AP": float("nan"), "AP-cat": float("nan")}})  # no labelled box
    assert caplog.messages == [f"no score: written to {tmp_path / 'evaluation.json'}"]
