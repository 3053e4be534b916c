"""OUTPUT_SYNC: runs whose machine is lost come back from a store, which may be slow, fail at random, or be away."""

import errno
import json
import os
import random
import shutil
import signal
import threading
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import fsspec
import pytest
import torch
from commands import exit_code_of_fork, launch_forks, wait_until
from fsspec.implementations.memory import MemoryFileSystem
from runs import assert_same, load, run, run_config, train_for_module

from projects.LargeData import output_sync, run_store
from projects.LargeData.output_sync import OutputSync
from projects.LargeData.run_store import RunStore
from revisit.checkpoint.metrics_file import read_metrics
from revisit.engine.same_experiment import config_text
from revisit.engine.writers import Writers
from revisit.errors import LostContactError, UserError

from detectron2.engine import HookBase
from detectron2.utils import comm

OPTIONS = ("SOLVER.MAX_ITER", 12, "SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.CHECKPOINT_KEPT_EVERY", 3)
OPTIONS += ("VIEWS.NUM_SMALL", 0)
URL = "failing://bucket/run"


class Failing(MemoryFileSystem):
    """A store of which a share of the requests fail."""

    protocol = "failing"
    store: dict = {}
    pseudo_dirs = [""]
    share = 0.0
    random = random.Random(0)
    closed = ""  # the end of a name that cannot be written
    refused = 0  # tries to write it

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("failing://", "memory://"))

    def ask(self):
        if type(self).random.random() < type(self).share:
            raise ConnectionError("no route to the store")

    def _open(self, *args, **options):
        self.ask()
        return super()._open(*args, **options)

    def cat_file(self, *args, **options):
        self.ask()
        return super().cat_file(*args, **options)

    def pipe_file(self, path, *args, **options):
        self.ask()
        if self.closed and path.endswith(self.closed):
            type(self).refused += 1
            raise ConnectionError("no route to the store")
        super().pipe_file(path, *args, **options)

    def rm_file(self, path):
        self.ask()
        super().rm_file(path)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.store.clear()
    monkeypatch.setattr(Failing, "share", 0.0)
    for name, seconds in {
        "POLL": 0.01,
        "SETTLE": 0.0,
        "SILENCE": 0.3,
        "FIRST_WAIT": 0.01,
        "LONGEST_WAIT": 0.02,
    }.items():
        monkeypatch.setattr(output_sync, name, seconds)
    monkeypatch.setattr(run_store, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(Writers, "PERIOD", 2)


@contextmanager
def synced(cfg, *, resume=False):
    """A training's surroundings, as tools/train_net.py makes them."""
    sync = OutputSync()
    sync.prepare(cfg, resume=resume)
    with sync.kept(cfg, resume=resume):
        yield


def train_synced(output: Path, url: str = URL, *options: object, resume: bool = False, hook: HookBase | None = None):
    cfg = run_config(output, *OPTIONS, "OUTPUT_SYNC", url, *options)
    with synced(cfg, resume=resume):
        return run(cfg, resume=resume, hook=hook)


def listed(url: str = URL) -> dict[str, dict]:
    with fsspec.open(f"{url}/run.json") as file:
        return {entry["name"]: entry for entry in json.load(file)["files"]}


class Ends(HookBase):
    """Ends a run after an iteration: by an exception, or where ``url`` has its checkpoint by SIGKILL."""

    def __init__(self, iteration: int, url: str = ""):
        self._iteration, self._url = iteration, url

    def after_step(self) -> None:
        if self.trainer.iter != self._iteration:
            return
        if not self._url:
            raise RuntimeError("ends")
        if comm.is_main_process():
            wait_until(lambda: f"model_{self._iteration - 1:07d}.pth" in known(self._url))
            os.kill(os.getpid(), signal.SIGKILL)


def known(url: str) -> dict[str, dict]:
    try:
        return listed(url)
    except FileNotFoundError:
        return {}


@pytest.fixture(scope="module")
def whole(toy_root, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writers, "PERIOD", 2)
        return train_for_module(toy_root, tmp_path_factory.mktemp("whole"), *OPTIONS)


def assert_same_end(one: Path, other: Path) -> None:
    a, b = (load(folder / "model_final.pth") for folder in (one, other))
    for part in ("model", "trainer"):
        assert_same(a[part], b[part])


def test_a_killed_run_whose_disk_is_lost_ends_as_an_uninterrupted_one(whole, toy_datasets, tmp_path):
    url = f"file://{tmp_path}/store"
    assert exit_code_of_fork(partial(train_synced, hook=Ends(6, url)), tmp_path / "lost", url) == -signal.SIGKILL
    shutil.rmtree(tmp_path / "lost")
    trainer = train_synced(tmp_path / "new", url, resume=True)
    assert trainer.start_iter == 6
    assert_same_end(whole, tmp_path / "new")
    before, after = (read_metrics(folder / "metrics.json")["lr"] for folder in (whole, tmp_path / "new"))
    assert {*before} - {*after} <= {*before[:3]}  # those up to the kill, which the store need not have yet


def two_processes(output: Path, url: str, *, resume: bool = False, hook: HookBase | None = None) -> int:
    cfg = run_config(output, *OPTIONS, "OUTPUT_SYNC", url)
    with OutputSync().kept(cfg, resume=resume) if url and comm.is_main_process() else nullcontext():
        return run(cfg, resume=resume, hook=hook).start_iter


def test_a_run_of_two_processes_ends_on_an_empty_machine_as_an_uninterrupted_one(toy_datasets, tmp_path):
    url = f"file://{tmp_path}/store"
    launch_forks(two_processes, 2, tmp_path / "whole", "")
    OutputSync().prepare(run_config(tmp_path / "lost", *OPTIONS, "OUTPUT_SYNC", url), resume=False)
    with pytest.raises(SystemExit):
        launch_forks(partial(two_processes, hook=Ends(6, url)), 2, tmp_path / "lost", url)
    shutil.rmtree(tmp_path / "lost")
    OutputSync().prepare(run_config(tmp_path / "new", *OPTIONS, "OUTPUT_SYNC", url), resume=True)
    starts = launch_forks(partial(two_processes, resume=True), 2, tmp_path / "new", url)
    assert starts == [6, 6]
    assert_same_end(tmp_path / "whole", tmp_path / "new")


def test_a_store_that_fails_at_random_has_everything_in_the_end_and_gives_it_back(
    whole, toy_datasets, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(Failing, "share", 0.3)
    monkeypatch.setattr(run_store, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(run_store, "TRIES", 100)  # six might all fail
    caplog.set_level("INFO", "projects")
    with pytest.raises(RuntimeError, match="ends"):
        train_synced(tmp_path / "lost", hook=Ends(8))
    away = [record for record in caplog.records if "does not take files" in record.message]
    back = [record for record in caplog.records if "takes files again" in record.message]
    assert len(away) == len(back) >= 1 and {record.levelname for record in away} == {"WARNING"}
    shutil.rmtree(tmp_path / "lost")
    assert train_synced(tmp_path / "new", resume=True).start_iter == 8
    assert_same_end(whole, tmp_path / "new")


def test_the_store_keeps_the_checkpoints_that_the_disk_keeps_also_after_a_resume(whole, toy_datasets, tmp_path):
    with pytest.raises(RuntimeError, match="ends"):
        train_synced(tmp_path / "run", hook=Ends(8))
    shutil.rmtree(tmp_path / "run")
    train_synced(tmp_path / "run", resume=True)
    of_store = {name for name in listed() if name.startswith("model_")}
    assert of_store == {path.name for path in whole.glob("model_*.pth")}  # the sixth, too, which the new disk never had
    places = {entry["place"] for entry in listed().values()}
    assert {Path(name).name for name in Failing.store} == {*places, "run.json", "run_copy.json"}


def test_a_store_that_is_away_stops_nothing_and_gets_the_files_when_the_run_is_started_again(
    whole, toy_datasets, tmp_path, monkeypatch, caplog
):
    class Leaves(HookBase):
        def after_step(self) -> None:
            Failing.share = 1.0

    monkeypatch.setattr(output_sync, "PATIENCE", 0.05)
    train_synced(tmp_path / "run", hook=Leaves())
    messages = [record.message for record in caplog.records if "OUTPUT_SYNC" in record.message]
    assert len(messages) == 1 and "They are on the disk" in messages[0]
    assert "LACKS the last files" in caplog.text
    assert_same_end(whole, tmp_path / "run")
    wait_until(lambda: not [thread for thread in threading.enumerate() if "Upload" in thread.name])
    Failing.share = 0.0
    monkeypatch.setattr(output_sync, "PATIENCE", 600.0)
    train_synced(tmp_path / "run", resume=True)
    assert "model_final.pth" in listed()


def test_what_the_list_has_stays_as_it_is_while_a_new_list_cannot_be_written(toy_datasets, tmp_path, monkeypatch):
    def write(text: str) -> None:
        (tmp_path / "metrics.json").write_text(text)
        torch.save({}, tmp_path / "model_0000001.pth")

    def tries() -> None:
        before = Failing.refused
        wait_until(lambda: Failing.refused >= before + 3)

    monkeypatch.setattr(output_sync, "PATIENCE", 30.0)
    with synced(run_config(tmp_path, *OPTIONS, "OUTPUT_SYNC", URL)):
        write("first")
        wait_until(lambda: "model_0000001.pth" in known(URL))
        monkeypatch.setattr(Failing, "closed", "run.json")
        for text in ("second", "third"):
            write(text)
            tries()
        entry = listed()["metrics.json"]
        assert fsspec.open(f"{URL}/{entry['place']}").open().read() == b"first"
        monkeypatch.setattr(Failing, "closed", "")
    entry = listed()["metrics.json"]
    assert fsspec.open(f"{URL}/{entry['place']}").open().read() == b"third"


def test_a_full_disk_is_no_lost_contact(tmp_path):
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "model.pth")

    with pytest.raises(OSError, match="No space left"):
        run_store.answered(full, "reading")


def test_a_damaged_copy_is_not_brought_back_but_the_one_before_it(whole, toy_datasets, tmp_path, caplog):
    with pytest.raises(RuntimeError, match="ends"):
        train_synced(tmp_path / "lost", hook=Ends(8))
    (newest,) = [name for name in Failing.store if name.endswith("model_0000007.pth")]
    with fsspec.open("failing://bucket/run/model_0000007.pth", "wb") as file:
        file.write(Failing.store[newest].getvalue()[:-1] + b"x")
    assert train_synced(tmp_path / "new", resume=True).start_iter == 6
    assert "NOT BROUGHT BACK" in caplog.text and "other bytes" in caplog.text
    assert_same_end(whole, tmp_path / "new")


def test_an_older_disk_gets_the_newer_checkpoint_of_its_run(whole, toy_datasets, tmp_path):
    with pytest.raises(RuntimeError, match="ends"):
        train_synced(tmp_path / "old", hook=Ends(4))
    with pytest.raises(RuntimeError, match="ends"):
        train_synced(tmp_path / "new", resume=True, hook=Ends(8))
    assert train_synced(tmp_path / "old", resume=True).start_iter == 8
    assert_same_end(whole, tmp_path / "old")


def refused(output: Path, url: str = URL, *options: object, resume: bool = False) -> str:
    with pytest.raises(UserError) as error:
        OutputSync().prepare(run_config(output, *OPTIONS, "OUTPUT_SYNC", url, *options), resume=resume)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_two_runs_in_one_place_are_refused_while_one_is_alive_and_afterwards(toy_datasets, tmp_path, monkeypatch):
    monkeypatch.setattr(output_sync, "BEAT", 0.02)
    monkeypatch.setattr(output_sync, "SILENCE", 60.0)
    with synced(run_config(tmp_path / "one", *OPTIONS, "OUTPUT_SYNC", URL)):
        for resume in (False, True):
            assert "which is alive" in refused(tmp_path / "two", resume=resume)
    with fsspec.open(f"{URL}/run.json", "w") as file:
        file.write('{"run": "1", "files": []}')
    assert "holds a run: --resume continues it" in refused(tmp_path / "two")
    torch.save({}, tmp_path / "two/model_0000001.pth")
    assert "holds another run than OUTPUT_DIR" in refused(tmp_path / "two", resume=True)


def test_another_run_leaves_the_place_and_its_folder_as_they_are(toy_datasets, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/config.yaml").write_text(config_text(run_config(tmp_path / "one", *OPTIONS)))
    with pytest.raises(RuntimeError, match="ends"):
        train_synced(tmp_path / "one", hook=Ends(4))
    other = ("VIEWS.NUM_SMALL", 1)
    message = refused(tmp_path / "two", URL, *other, resume=True)
    assert "another experiment, VIEWS.NUM_SMALL (0 -> 1)" in message and "--accept VIEWS.NUM_SMALL" in message
    assert not [*(tmp_path / "two").glob("model_*.pth"), *(tmp_path / "two").glob("*.yaml")]
    accepting = run_config(tmp_path / "two", *OPTIONS, "OUTPUT_SYNC", URL, *other)
    assert output_sync.open_store(accepting).owner() is None
    OutputSync().prepare(accepting, resume=True, accepted=("VIEWS.NUM_SMALL",))
    assert [*(tmp_path / "two").glob("model_*.pth")]


def test_a_writer_killed_at_any_byte_leaves_the_old_list_or_the_new_one(monkeypatch):
    class Killed(BaseException):
        pass

    def write_until(count: int) -> None:
        """The bytes of all files together, of a store that keeps what it has got."""
        left = count

        def write(self, path, value, **options):
            nonlocal left
            MemoryFileSystem.pipe_file(self, path, value[:left], **options)
            if len(value) > left:
                raise Killed
            left -= len(value)

        monkeypatch.setattr(Failing, "pipe_file", write)

    store = RunStore(URL)
    store.make()
    one, two = (run_store.Listing("a", {"model.pth": run_store.Entry("model.pth", n, "00", n)}) for n in (1, 2))
    length = len(json.dumps(one, indent=1)) * 3
    for before in (None, one):
        for count in range(length):
            write_until(10 * length)
            Failing.store.clear()
            if before:
                store.publish(before)
            write_until(count)
            with suppress(Killed):
                store.publish(two)
            assert store.listing() in (before, two)
    assert store.listing() == two  # the last count is more than both files have


def test_a_place_whose_lists_are_none_is_refused(toy_datasets, tmp_path):
    store = RunStore(URL)
    store.make()
    for name in (run_store.LIST, run_store.COPY):
        with fsspec.open(f"{URL}/{name}", "w") as file:
            file.write('{"run": "1", "files": [{"name": "model.pth"}]}')
    assert "run.json is no list of a run's files: take another place" in refused(tmp_path, resume=True)


def test_a_half_written_record_of_an_owner_is_waited_for(toy_datasets, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(output_sync, "SILENCE", 0.05)
    RunStore(URL).make()
    with fsspec.open(f"{URL}/owner.json", "w") as file:
        file.write('{"folder": "other", "pro')
    OutputSync().prepare(run_config(tmp_path / "one", *OPTIONS, "OUTPUT_SYNC", URL), resume=False)
    assert "belongs to a run that writes its record" in capsys.readouterr().out
    assert RunStore(URL).owner().folder == output_sync.read_own(tmp_path / "one").folder


def test_a_run_whose_place_was_taken_stops_to_upload_and_trains_on(toy_datasets, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(output_sync, "BEAT", 0.0)
    with synced(run_config(tmp_path / "one", *OPTIONS, "OUTPUT_SYNC", URL)):
        RunStore(URL).own(run_store.Owner("other", "process", "a run on another host"))
        wait_until(lambda: "NO COPY" in caplog.text)
    assert RunStore(URL).owner().folder == "other"


def test_places_that_cannot_be_are_refused_before_anything_is_trained(toy_datasets, tmp_path, monkeypatch):
    data = tmp_path / "photos"
    data.mkdir()
    output = tmp_path / "run"
    of_folder = ("DATASETS.TRAIN", (f"folder:{data}",))
    assert "is no URL" in refused(output, f"{tmp_path}/store")
    assert "opening nowhere://bucket" in refused(output, "nowhere://bucket")
    assert "inside OUTPUT_DIR" in refused(output, f"file://{output}/store")
    assert f"inside the data at {data}" in refused(output, f"file://{data}/store", *of_folder)
    of_bucket = ("DATASETS.TRAIN", ("shards:failing://bucket/train",))
    assert "inside the data at failing://bucket/train" in refused(output, "failing://bucket/train/run", *of_bucket)
    assert not list(output.glob("model_*"))

    def forbidden(*args, **options):
        raise PermissionError(13, "Access Denied")

    monkeypatch.setattr(Failing, "pipe_file", forbidden)
    assert "writing to failing://bucket/run: PermissionError" in refused(output)
    monkeypatch.setattr(Failing, "share", 1.0)
    with pytest.raises(LostContactError, match="no answer"):
        OutputSync().prepare(run_config(output, *OPTIONS, "OUTPUT_SYNC", URL), resume=True)
