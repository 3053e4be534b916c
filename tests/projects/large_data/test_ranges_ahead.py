"""Shards from a server that fails at random: the same batches as from local files, few requests, no wrong image."""

import gc
import random
import threading
import time
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from commands import run
from tiny import tiny_config

from projects.LargeData import ranges_ahead, shard_index
from projects.LargeData.ranges_ahead import BatchesAhead, batches_ahead, fetch, spans_of
from projects.LargeData.shards import load_shards
from revisit.data.images import image_bytes
from revisit.data.images.image_bytes import is_away, range_of, read_sample
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import ends_well, require_record
from revisit.data.loading.loader import ResumableLoader
from revisit.engine.data_checks import inspect_training
from revisit.errors import LostContactError, UserError

pytest.importorskip("aiohttp")  # by which fsspec reads http://
NUM_IMAGES = 26
FAULTS = ("unavailable", "cut", "short", "long", "closed")


class Store(ThreadingHTTPServer):
    """Answers ranges of a folder's files, and a share of the requests by one of FAULTS."""

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), partial(Answers, directory=str(folder)))
        self.asked: Counter[str] = Counter()
        self.failing = 0.0  # share of the requests for images
        self.is_away = False  # for all requests
        self.has_ranges = True
        self.random = random.Random(0)
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(SimpleHTTPRequestHandler):
    server: Store

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        with self.server.lock:
            self.server.asked[f"{self.command} {'range' if asked else 'whole'}"] += 1
            may_fail = asked and self.path.endswith(".tar")
            fails = may_fail and self.server.random.random() < self.server.failing
            fault = self.server.random.choice(FAULTS) if fails else ""
        if self.server.is_away:
            self.send_error(503)
            return
        if not (asked and self.server.has_ranges):
            super().do_GET()
            return
        first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
        path = Path(self.translate_path(self.path))
        if path.is_file():
            self.answer(path.read_bytes()[first : last + 1], fault)
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        if self.server.is_away:
            self.send_error(503)
        else:
            super().do_HEAD()

    def answer(self, data: bytes, fault: str) -> None:
        if fault == "closed":
            self.close_connection = True
            return
        if fault == "unavailable":
            self.send_error(503)
            return
        body = {"cut": data[:-7], "short": data[:-9], "long": data + b"more"}.get(fault, data)
        self.send_response(206)
        self.send_header("Content-Length", str(len(data) if fault == "cut" else len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """26 small JPEGs in three tar files."""
    folder = tmp_path_factory.mktemp("packed")
    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    for n in range(NUM_IMAGES):
        cv2.imwrite(str(folder / f"images/{n:02d}.jpg"), rng.integers(0, 256, (40, 40, 3), np.uint8))
    words = f"--data folder:{folder}/images --output {folder}/shards --count 10"
    run(f"python tools/make_shards.py {words}", folder)
    return folder / "shards"


@pytest.fixture
def store(shards, monkeypatch):
    monkeypatch.setattr(image_bytes, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(image_bytes, "LONGEST_WAIT", 0.02)
    server = Store(shards)
    yield server
    server.shutdown()
    server.server_close()


def loader_of(place: object, *options: object) -> ResumableLoader:
    return ResumableLoader(tiny_config("DATASETS.TRAIN", (f"shards:{place}",), *options))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_from_a_store_that_fails_is_the_run_from_local_files(shards, store, workers):
    options = ("DATALOADER.NUM_WORKERS", workers, "VIEWS.NUM_SMALL", 0)
    local, remote = loader_of(shards, *options), loader_of(store.url, *options)
    local.start_iteration = remote.start_iteration = 2  # as a resumed run
    store.failing = 0.4
    for one, other in islice(zip(local, remote, strict=False), 9):
        assert not other["read_errors"]
        assert all(torch.equal(one[name], other[name]) for name in ("anchor", "positive", "index"))


def test_batches_are_asked_for_ahead_by_few_requests_and_once(shards, store):
    remote = loader_of(store.url, "DATALOADER.NUM_WORKERS", 0, "DATALOADER.BATCHES_AHEAD", 2)
    before = store.asked["GET range"]
    batches = iter(remote)
    next(batches)
    again = remote.batch_of(0)  # which the run looks at in between
    ahead = [next(batches) for _ in range(2)]
    deadline = time.monotonic() + 60
    while store.asked["GET range"] < 7 and time.monotonic() < deadline:
        time.sleep(0.01)  # for the two that are ready and the one that waits for its place
    assert set(store.asked) <= {"GET range", "GET whole"}
    images = {name for index in range(3) for name in remote.images_of(index)}
    # One for each of the three shards: three batches, one again, two that are ready and the one that waits.
    assert store.asked["GET range"] - before <= 3 * (3 + 1 + 2 + 1) and len(images) == 3 and len(ahead) == 2
    torch.testing.assert_close(again["anchor"], loader_of(shards).batch_of(0)["anchor"])


def test_without_batches_ahead_each_image_is_read_when_it_is_wanted(shards, store):
    remote = loader_of(store.url, "DATALOADER.BATCHES_AHEAD", 0, "DATALOADER.NUM_WORKERS", 0)
    before = store.asked["GET range"]
    next(iter(remote))
    assert store.asked["GET range"] - before == 8


def test_batches_without_images_at_a_url_are_between_others(store):
    (record, *_) = load_shards(store.url).records
    cfg = tiny_config("DATASETS.TRAIN", ("folder:photos", f"shards:{store.url}"))
    batches = [[{"file_name": "photos/1.jpg"}], [record]]
    ahead = batches_ahead(cfg, iter(batches))
    for batch in batches:
        ahead.begin(batch)
    before = store.asked["GET range"]
    assert len(read_sample(record)) == record["size"] and store.asked["GET range"] == before
    assert batches_ahead(tiny_config("DATASETS.TRAIN", ("folder:photos",)), iter(batches)) is None


def test_what_goes_wrong_before_a_batch_is_asked_for_is_raised_where_it_is_waited_for():
    def batches():
        raise UserError("the index was written to")
        yield

    with pytest.raises(UserError, match="index was written to"):
        BatchesAhead(batches(), 1, fetch).begin([])


def test_neighbouring_ranges_are_one_request():
    a, b, c, d = ("x", 0, 10), ("x", 10, 30), ("x", 30 + ranges_ahead.GAP + 1, 2 * ranges_ahead.GAP), ("y", 0, 5)
    assert spans_of([d, b, c, a]) == [[a, b], [c], [d]]


def test_a_thousand_failing_requests_give_no_wrong_bytes(shards, store):
    records = load_shards(store.url).records
    expected = {range_of(record)[1:]: read_sample(record) for record in load_shards(str(shards)).records}
    store.failing = 0.7
    failed = 0
    while store.asked["GET range"] < 1000:
        chosen = store.random.sample(records, 6)
        content = fetch([range_of(record) for record in chosen])
        for (_, start, end), data in content.items():
            assert data[512:] in expected.values() and len(data) == end - start
        failed += 6 - len(content)
    assert failed < 300  # those whose length was wrong too often are left to who wants them


def test_a_store_that_comes_back_is_waited_for_and_one_that_does_not_ends_the_run(shards, store, monkeypatch):
    wanted = [range_of(record) for record in load_shards(store.url).records[:5]]
    store.failing = 1.0
    monkeypatch.setattr(store.random, "choice", lambda faults: "unavailable")
    threading.Timer(0.5, lambda: setattr(store, "failing", 0.0)).start()
    assert len(fetch(wanted)) == 5
    store.failing = 1.0
    monkeypatch.setattr(image_bytes, "PATIENCE", 0.1)
    with pytest.raises(LostContactError, match=r"no answer for \d+ s .*503"):
        fetch(wanted)
    for workers in (0, 1):
        with pytest.raises(LostContactError, match=rf"^{store.url}/.*: no answer for \d+ s"):  # without a traceback
            next(iter(loader_of(store.url, "DATALOADER.NUM_WORKERS", workers)))
    gc.collect()  # the exceptions, whose frames hold the worker


def test_before_the_first_step_a_store_that_is_away_is_waited_for_or_named_and_no_image_is_to_blame(store, monkeypatch):
    cfg = tiny_config("DATASETS.TRAIN", (f"shards:{store.url}",))
    store.is_away = True
    threading.Timer(0.3, lambda: setattr(store, "is_away", False)).start()
    (record, *_) = load_shards(store.url).records
    store.failing = 1.0
    monkeypatch.setattr(store.random, "choice", lambda faults: "unavailable")
    threading.Timer(0.3, lambda: setattr(store, "failing", 0.0)).start()
    assert len(read_sample(record)) == record["size"]
    store.failing = 1.0
    monkeypatch.setattr(image_bytes, "PATIENCE", 0.1)
    for look in (
        partial(inspect_training, cfg),
        partial(ends_well, record),
        partial(require_record, record, PHOTOGRAPHS),
    ):
        with pytest.raises(LostContactError, match=r"shard-00000.*: no answer for \d+ s .*503"):
            look()
    store.is_away = True
    monkeypatch.setattr(shard_index, "AT_START", 0.1)
    with pytest.raises(LostContactError, match=r"index.npz: no answer for \d+ s .*503"):
        load_shards(store.url)


def test_a_server_without_ranges_is_refused_before_it_gives_a_shard(store):
    store.has_ranges = False
    with pytest.raises(UserError, match="index.npz: the server gives whole files where a part is asked for"):
        load_shards(store.url)
    assert store.asked["GET range"] == 1


def test_what_a_web_server_refuses_is_asked_for_once():
    statuses = {401: False, 403: False, 404: False, 429: True, 503: True}
    for status, is_later in statuses.items():
        refusal = type("ClientResponseError", (Exception,), {"status": status})()
        as_for_size = FileNotFoundError("http://a")
        as_for_size.__cause__ = refusal
        assert is_away(refusal) == is_away(as_for_size) == is_later
        answer = {"ResponseMetadata": {"HTTPStatusCode": status}}
        as_for_size.__cause__ = type("ClientError", (Exception,), {"response": answer})()  # of a bucket
        assert is_away(as_for_size) == is_later
    assert is_away(ConnectionRefusedError()) and is_away(OSError("timeout"))
    assert not any(map(is_away, (FileNotFoundError(), PermissionError(), UserError("no cache folder"))))


def test_the_time_that_a_store_is_away_counts_from_its_last_answer_and_requests_count(monkeypatch):
    clock, asked = SimpleNamespace(now=0.0), []

    def ask(ranges):
        asked.append(len(ranges))
        clock.now += 100.0
        return {each: b"1" if len(asked) == 2 and each == ranges[0] else OSError("away") for each in ranges}

    time_of = SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda seconds: None)
    monkeypatch.setattr(image_bytes, "time", time_of)
    monkeypatch.setattr(ranges_ahead, "ask", ask)
    with pytest.raises(LostContactError, match="no answer for 200 s"):
        fetch([("a.tar", n, n + 1) for n in range(3)])
    assert asked == [3, 3, 2, 2]


def test_answers_of_a_wrong_length_count_for_their_range_and_errors_do_not(monkeypatch):
    most = ranges_ahead.TRIES_OF_WRONG_LENGTH
    late, wrong = ("a.tar", 0, 1), ("a.tar", 1, 2)
    answers = {late: [*[OSError("away")] * most, *[b""] * (most - 1), b"1"], wrong: [*[b"12"] * most, b"1"]}
    monkeypatch.setattr(image_bytes, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(ranges_ahead, "ask", lambda ranges: {each: answers[each].pop(0) for each in ranges})
    assert fetch([late, wrong]) == {late: b"1"}


def test_a_missing_shard_is_named_when_its_image_is_wanted(shards, store):
    (record, *_) = load_shards(store.url).records
    lost = {**record, "file_name": f"{store.url}/none.tar"}
    assert fetch([range_of(lost)]) == {}
