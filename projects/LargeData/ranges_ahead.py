"""Bytes of images in a store, many requests at once: a worker's next batches are asked for while it makes this one.

A store answers one request after 5 to 100 ms, and thousands at the same time. Which images a batch has follows from
seed and iteration alone, so a thread in every worker asks for their ranges ahead. Order, batches and weights stay those
of local files.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from queue import Queue
from typing import NamedTuple

from torch.utils.data import get_worker_info

from projects.LargeData.cache import Cache, Fetch
from projects.LargeData.threads import quiet_thread
from revisit.data.images import image_bytes
from revisit.data.images.image_bytes import Patience, Range, filesystem_of, hold, range_of
from revisit.data.loading.upcoming import READ_AHEAD_REGISTRY, Batches
from revisit.errors import expect
from revisit.files import is_url, user_cache
from revisit.keys import declare, integer, number

from detectron2.config import CfgNode

TRIES_OF_WRONG_LENGTH = 6  # of a range whose answers are no error, and have more or fewer bytes
GAP = 2**16  # bytes between two ranges that one request reads, too

declare(
    "DATALOADER.BATCHES_AHEAD",
    4,
    "Batches that a worker has asked a store for, where images lie in shards at a URL, before it makes them; so many "
    "batches of encoded images are in its memory. 0: each image when it is wanted.",
    integer(),
    may_change=True,
    read_by="Pretraining",
)
declare(
    "DATALOADER.CACHE_GB",
    0.0,
    "So many GB of images in shards at a URL stay on this machine, in revisit/images of XDG_CACHE_HOME or ~/.cache, "
    "for all its processes and later runs. 0: none.",
    number(),
    may_change=True,
    read_by="Pretraining",
)


class Answer(NamedTuple):
    """What a store has given for a batch."""

    wanted: list[Range]
    content: dict[Range, bytes]
    error: Exception | None = None


class BatchesAhead:
    """Asks ``read`` for the ranges of ``batches`` in a thread, ``most`` of them ahead of what is used."""

    def __init__(self, batches: Batches, most: int, read: Fetch):
        self._read = read
        self._answers: Queue[Answer] = Queue(maxsize=most)
        self._next: Answer | None = None
        quiet_thread(self._ask, batches).start()

    def _ask(self, batches: Batches) -> None:
        try:
            for records in batches:
                wanted = ranges_at_urls(records)
                self._answers.put(Answer(wanted, self._read(wanted)))
        except Exception as error:  # raised where the next batch is waited for
            self._answers.put(Answer([], {}, error))

    def begin(self, records: list[dict]) -> None:
        """Hold the bytes of a batch: the next one, or another that is looked at in between.

        Raises LostContactError where the store stays away.
        """
        self._next = self._next or self._answers.get()
        if self._next.error:
            raise self._next.error
        wanted = ranges_at_urls(records)
        if wanted != self._next.wanted:
            hold(self._read(wanted))
            return
        hold(self._next.content)
        self._next = None


def ranges_at_urls(records: Iterable[dict]) -> list[Range]:
    """Of images in shards that are not on this machine."""
    return [range_of(record) for record in records if "offset" in record and "://" in str(record["file_name"])]


def fetch(ranges: list[Range]) -> dict[Range, bytes]:
    """The bytes of these ranges, all asked for at once, and again after a while where there is no answer.

    Ranges that the store does not have, or answers with another length, are left out; whoever wants them reads them and
    says what is wrong.

    Raises:
        LostContactError: none of them came for PATIENCE seconds, those that a request takes included.
    """
    content = {}
    wrong: Counter[Range] = Counter()  # answers with another length
    left, patience = set(ranges), Patience(min(ranges)[0] if ranges else "", image_bytes.PATIENCE)
    while True:
        answers = ask(sorted(left))
        whole = {each: data for each, data in answers.items() if _is_whole(each, data)}
        content |= whole
        if whole:
            patience.answered()
        wrong.update(each for each, data in answers.items() if isinstance(data, bytes) and each not in whole)
        left = {each for each, data in answers.items() if each not in whole and _may_come(data, wrong[each])}
        if not left:
            return content
        patience.wait(answers[min(left)])


def _may_come(answer: bytes | Exception, wrong: int) -> bool:
    """Whether asking again may help where ``wrong`` answers had another length."""
    if isinstance(answer, Exception):
        return not isinstance(answer, FileNotFoundError)
    return wrong < TRIES_OF_WRONG_LENGTH


def _is_whole(wanted: Range, data: bytes | Exception) -> bool:
    _, start, end = wanted
    return isinstance(data, bytes) and len(data) == end - start


def ask(ranges: list[Range]) -> dict[Range, bytes | Exception]:
    """What their stores answer, by range; ranges of a file that are near each other are one request."""
    by_store = defaultdict(list)
    for span in spans_of(ranges):
        store, path = filesystem_of(span[0][0])
        by_store[store].append((path, span))
    answers = {}
    for store, requests in by_store.items():
        paths = [path for path, _ in requests]
        starts, ends = [span[0][1] for _, span in requests], [_end(span) for _, span in requests]
        try:
            replies = store.cat_ranges(paths, starts, ends, on_error="return")
        except Exception as error:  # of a store as a whole, such as no credentials
            replies = [error] * len(requests)
        for (_, span), reply in zip(requests, replies, strict=True):
            answers |= dict(_parts(span, reply))
    return answers


def spans_of(ranges: list[Range]) -> list[list[Range]]:
    """Sorted ranges, those together that are in one file and at most GAP bytes apart."""
    spans = []
    for each in sorted(ranges):
        name, start, _ = each
        if spans and spans[-1][0][0] == name and start - _end(spans[-1]) <= GAP:
            spans[-1].append(each)
        else:
            spans.append([each])
    return spans


def _end(span: list[Range]) -> int:
    return max(end for _, _, end in span)


def _parts(span: list[Range], reply: bytes | Exception) -> Iterator[tuple[Range, bytes | Exception]]:
    """What a reply to a span is for each of its ranges."""
    first = span[0][1]
    is_whole = isinstance(reply, bytes) and len(reply) == _end(span) - first
    for name, start, end in span:
        if is_whole:
            yield (name, start, end), reply[start - first : end - first]
        else:
            yield (name, start, end), b"" if isinstance(reply, bytes) else reply


@READ_AHEAD_REGISTRY.register()
def batches_ahead(cfg: CfgNode, batches: Batches) -> BatchesAhead | None:
    """None with DATALOADER.BATCHES_AHEAD 0, and where no data set lies at a URL."""
    options = cfg.DATALOADER
    if not options.BATCHES_AHEAD:
        expect(not options.CACHE_GB, "DATALOADER.CACHE_GB keeps what is read ahead: expected BATCHES_AHEAD above 0")
        return None
    if not any(map(is_url, cfg.DATASETS.TRAIN)):
        return None
    read = partial(_cache_of(options.CACHE_GB).complete, fetch=fetch) if options.CACHE_GB else fetch
    return BatchesAhead(batches, options.BATCHES_AHEAD, read)


def _cache_of(gigabytes: float) -> Cache:
    """One of a process's workers warns for all."""
    worker = get_worker_info()
    return Cache(user_cache() / "images", int(gigabytes * 1e9), warns=worker is None or worker.id == 0)
