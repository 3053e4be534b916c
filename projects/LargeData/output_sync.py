"""OUTPUT_SYNC: a run's files go to a store while it trains, and come back where it resumes on an empty machine.

One thread looks at OUTPUT_DIR, uploads what is new, and writes the list of what is whole last. It neither stops nor
waits for the training: where the store does not answer, the files stay on the disk, and it tries again.
"""

import json
import logging
import re
import socket
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, NamedTuple

from projects.LargeData.run_store import HALF, OWNER, Entry, Listing, Owner, RunStore, answered
from projects.LargeData.threads import quiet_thread
from revisit.checkpoint.run_folder import (
    FINAL,
    OF_RUN,
    SETTINGS,
    checkpoints_of_run,
    earlier_part,
    iteration_of,
    outdated,
)
from revisit.engine.data_checks import evaluation_sets
from revisit.engine.run_copies import RUN_COPY_REGISTRY
from revisit.engine.same_experiment import check_stated
from revisit.errors import UserError, expect, first_line, without_secrets
from revisit.files import file_digest, is_url, make_folder, one_at_a_time, write_whole
from revisit.keys import RUN, Rule, declare

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

OF_FOLDER = "output_sync.json"  # in OUTPUT_DIR: of which run it is, and a name for the folder itself
PATTERNS = (*OF_RUN, *SETTINGS, "log.txt")
POLL, SETTLE = 1.0, 0.5  # seconds between two looks; until the metrics of a checkpoint's iteration are written, too
BEAT, SILENCE = 20.0, 60.0  # seconds between two signs of life; without one, after which a run counts as dead
FIRST_WAIT, LONGEST_WAIT = 2.0, BEAT  # seconds between tries, doubled after each; a try is a sign of life, too
PATIENCE = 600.0  # seconds that the end of a training waits for the last upload

declare(
    "OUTPUT_SYNC",
    "",
    "A place in a store, such as s3://bucket/run, that gets checkpoints, metrics and settings while a run trains, and "
    "from which --resume brings them back to a machine that has none; any URL of fsspec's.",
    Rule("a URL such as s3://bucket/run, or ''", lambda v: isinstance(v, str) and (v == "" or is_url(v))),
    may_change=True,
    scope=RUN,
)


class TakenOverError(Exception):
    """The place in the store is another run's now."""


@RUN_COPY_REGISTRY.register()
class OutputSync:
    """The copy of a run at OUTPUT_SYNC."""

    def prepare(self, cfg: CfgNode, *, resume: bool, accepted: Collection[str] = ()) -> None:
        """Refuse a place that is another run's; claim a free one; bring back what is newer than OUTPUT_DIR has."""
        if not cfg.OUTPUT_SYNC:
            return
        folder = Path(cfg.OUTPUT_DIR)
        make_folder(folder, "OUTPUT_DIR")
        store = open_store(cfg)
        with one_at_a_time(folder / f".{OF_FOLDER}.lock"):  # of several processes here, one brings the files back
            listing = own_listing(store, folder, resume=resume)
            if listing:
                check_stated(cfg, settings_of(store, listing), accepted=accepted)
            claim(store, folder)
            if listing:
                bring_back(store, listing, folder)

    @contextmanager
    def kept(self, cfg: CfgNode, *, resume: bool) -> Iterator[None]:
        if not cfg.OUTPUT_SYNC:
            yield
            return
        store, folder = open_store(cfg), Path(cfg.OUTPUT_DIR)
        listing = own_listing(store, folder, resume=resume)
        if not listing:
            name = read_own(folder).run if resume else ""
            listing = Listing(name or uuid.uuid4().hex, {})
        write_own(folder, read_own(folder)._replace(run=listing.run))
        upload = Upload(cfg, store, listing)
        upload.start()
        try:
            yield
        finally:
            upload.finish()


def open_store(cfg: CfgNode) -> RunStore:
    """The place of a config. Raises UserError for no URL, one inside the data or OUTPUT_DIR, or one that cannot be."""
    url = cfg.OUTPUT_SYNC
    expect(is_url(url), f"OUTPUT_SYNC {url} is no URL: expected one such as s3://bucket/run or file:///mnt/runs/1")
    store = RunStore(url)
    what = f"OUTPUT_SYNC {url} lies inside"
    expect(not is_inside(store, cfg.OUTPUT_DIR), f"{what} OUTPUT_DIR {cfg.OUTPUT_DIR}: expected another place")
    for name in (*cfg.DATASETS.TRAIN, *evaluation_sets(cfg)):
        parts = re.split(r":(?!//)", name)[1:]
        data = next((part for part in parts if is_inside(store, part)), None)
        expect(data is None, f"{what} the data at {data}: expected another place")
    return store


def is_inside(store: RunStore, place: str) -> bool:
    """Whether a store is a folder or a URL, or lies below it."""
    if is_url(place):
        return f"{store}/".startswith(f"{without_secrets(place).rstrip('/')}/")
    of_data = Path(place).expanduser()
    return bool(store.folder) and of_data.is_dir() and store.folder.resolve().is_relative_to(of_data.resolve())


def settings_of(store: RunStore, listing: Listing) -> dict[str, Any]:
    """The config of a run by dotted key, as the store has it; {} where it has none that can be read."""
    name = "config.yaml"
    with TemporaryDirectory() as place:
        if name in listing.files:
            fetch(store, listing, name, Path(place))
        return earlier_part(Path(place)).settings


class Own(NamedTuple):
    """What OUTPUT_DIR says of itself."""

    run: str = ""  # of which run it is
    folder: str = ""  # a name for the folder itself


def read_own(folder: Path) -> Own:
    """Each "" where nothing says it."""
    try:
        return Own(**json.loads((folder / OF_FOLDER).read_text()))
    except (OSError, ValueError, TypeError):
        return Own()


def write_own(folder: Path, own: Own) -> None:
    write_whole(folder / OF_FOLDER, json.dumps(own._asdict()))


def own_listing(store: RunStore, folder: Path, *, resume: bool) -> Listing | None:
    """What a place holds. Raises UserError for another run than OUTPUT_DIR does, or than is to begin."""
    listing = answered(store.listing, f"OUTPUT_SYNC: reading {store}")
    expect(
        resume or not listing,
        f"OUTPUT_SYNC {store} holds a run: --resume continues it, and a new one needs another place",
    )
    is_other = listing and checkpoints_of_run(folder) and read_own(folder).run != listing.run
    expect(not is_other, f"OUTPUT_SYNC {store} holds another run than OUTPUT_DIR {folder}: expected another place")
    return listing


def claim(store: RunStore, folder: Path) -> None:
    """Make the place this folder's. Raises UserError where a run in another folder is alive, or nothing can be written.

    A store has no locks: whoever owns the place writes a sign of life there every BEAT seconds.
    """
    mine = read_own(folder)
    own = mine.folder or uuid.uuid4().hex
    write_own(folder, mine._replace(folder=own))
    before = answered(store.owner, f"OUTPUT_SYNC: reading {store}")
    if before and before.folder == own:
        return
    if before:
        print(f"{store} belongs to {before.words}: waiting up to {SILENCE:.0f} s for a sign of life", flush=True)
    deadline, now = time.monotonic() + SILENCE, before
    while now and time.monotonic() < deadline:
        time.sleep(min(POLL, SILENCE))
        now = answered(store.owner, f"OUTPUT_SYNC: reading {store}")
        alive = now is not None and now != before
        expect(not alive, f"OUTPUT_SYNC {store} belongs to {before.words}, which is alive: expected another place")
    answered(lambda: take(store, own), f"OUTPUT_SYNC: writing to {store}")


def take(store: RunStore, own: str, process: str = "") -> Owner:
    store.make()
    owner = Owner(own, process, f"a run on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S}")
    store.own(owner)
    return owner


def bring_back(store: RunStore, listing: Listing, folder: Path) -> None:
    """Copy the newest whole checkpoint of a list, and what is no checkpoint, where OUTPUT_DIR has only older ones.

    What no run uploads, such as a file of settings of another program, stays where it is."""
    files = {name: entry for name, entry in listing.files.items() if any(fnmatch(name, each) for each in PATTERNS)}
    here = max(((iteration_of(path), path.stem == FINAL) for path in checkpoints_of_run(folder)), default=(-1, False))
    ranked = {(entry.iteration, Path(name).stem == FINAL): name for name, entry in files.items()}
    newer = [ranked[rank] for rank in sorted(ranked, reverse=True) if rank > here and rank[0] >= 0]
    if not newer:
        return
    write_own(folder, read_own(folder)._replace(run=listing.run))
    for name in [name for name, entry in files.items() if entry.iteration < 0]:
        fetch(store, listing, name, folder)
    brought = next((name for name in newer if fetch(store, listing, name, folder)), None)
    lost = f"none of the {len(newer)} checkpoints in {store} is whole: restore one, or start elsewhere"
    expect(brought is not None, lost)
    logger.info(f"{folder} has {brought} and the files of its run from {store}")


def fetch(store: RunStore, listing: Listing, name: str, folder: Path) -> bool:
    """Whether a file is whole in the store and on this disk now; says why not."""
    try:
        answered(lambda: store.download(listing.files[name], folder / name), f"OUTPUT_SYNC: reading {store}/{name}")
    except UserError as error:
        logger.error(f"NOT BROUGHT BACK: {error}")
        return False
    return True


class Upload:
    """The thread that uploads, for one training."""

    def __init__(self, cfg: CfgNode, store: RunStore, listing: Listing):
        self._cfg, self._store = cfg, store
        self._listing = Listing(listing.run, {**listing.files})  # and what was uploaded since it was published
        self._published = listing
        self._folder = Path(cfg.OUTPUT_DIR)
        self._owner = Owner("", "", "")
        self._last_beat = 0.0
        self._states: dict[str, tuple[int, int]] = {}  # of files that the store has, as they were on the disk
        self._outdated: set[str] = set()  # names in the store
        self._is_away = False
        self._ending, self._gives_up = Event(), Event()
        self._thread = quiet_thread(self._work)

    def start(self) -> None:
        """Raises UserError where nothing can be written."""
        own, process = read_own(self._folder).folder, uuid.uuid4().hex
        now = answered(self._store.owner, f"OUTPUT_SYNC: reading {self._store}")
        free = now in (None, HALF) or now.folder == own
        expect(free, f"OUTPUT_SYNC {self._store} belongs to {now and now.words}: expected another place")
        self._owner = answered(lambda: take(self._store, own, process), f"OUTPUT_SYNC: writing to {self._store}")
        self._last_beat = time.monotonic()
        self._thread.start()

    def finish(self) -> None:
        """Wait until the last files are in the store, PATIENCE seconds at most."""
        self._ending.set()
        self._thread.join(POLL)
        if self._thread.is_alive():
            logger.info(f"waiting up to {PATIENCE:.0f} s until {self._store} has the last files")
            self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._gives_up.set()
            way_out = "they are on the disk, and the same command with --resume uploads them"
            logger.error(f"{self._store} LACKS the last files of this run after {PATIENCE:.0f} s: {way_out}")

    def _work(self) -> None:
        wait = FIRST_WAIT
        try:
            while not self._gives_up.is_set():
                is_last = self._ending.is_set()
                done = self._attempt(is_last)
                if is_last and done:
                    return
                pause = POLL if done else wait
                wait = FIRST_WAIT if done else min(2 * wait, LONGEST_WAIT)
                (self._gives_up if is_last else self._ending).wait(pause)
        except TakenOverError as error:
            logger.error(f"NO COPY: OUTPUT_SYNC {self._store} belongs to {error} now. The run continues without")

    def _attempt(self, is_last: bool) -> bool:
        """Whether the store has all that it should have by now."""
        try:
            self._beat()
            if is_last or self._is_away or self._has_news():
                self._ending.wait(SETTLE)
                self._upload()
            if is_last:
                self._store.remove(OWNER)
        except TakenOverError:
            raise
        except Exception as error:  # packages of stores have errors of their own
            if not self._is_away:
                what = f"OUTPUT_SYNC: {self._store} does not take files ({type(error).__name__}: {first_line(error)})"
                logger.warning(f"{what}. They are on the disk; the run continues, and the upload is tried again")
            self._is_away = True
            return False
        if self._is_away:
            logger.info(f"OUTPUT_SYNC: {self._store} takes files again")
        self._is_away = False
        return True

    def _has_news(self) -> bool:
        """Whether there are checkpoints that the store lacks; other files go with the next one."""
        return any(self._states.get(path.name) != state_of(path) for path in self._folder.glob("model_*.pth"))

    def _beat(self, *, at_once: bool = False) -> None:
        """Show that this run is alive, every BEAT seconds. Raises TakenOverError."""
        if not at_once and time.monotonic() - self._last_beat < BEAT:
            return
        now = self._store.owner()
        if now not in (None, HALF) and now[:2] != self._owner[:2]:
            raise TakenOverError(now.words)
        self._owner = self._owner._replace(beat=self._owner.beat + 1)
        self._store.own(self._owner)
        self._last_beat = time.monotonic()

    def _upload(self) -> None:
        """Upload what is new; the list follows each checkpoint, the newest first, and so before the older ones."""
        self._publish()  # what an earlier try has uploaded; the next upload might have the name that the list has
        files = {path for pattern in PATTERNS for path in self._folder.glob(pattern) if path.is_file()}
        checkpoints = [path for path in checkpoints_of_run(self._folder) if path in files]
        for path in sorted(files - {*checkpoints}):
            self._upload_file(path)
        for path in checkpoints:
            if self._upload_file(path):
                self._publish()
        self._publish()
        for place in sorted(self._outdated):
            self._store.remove(place)
            self._outdated.discard(place)

    def _upload_file(self, path: Path) -> bool:
        """Whether it was new. A file that is removed in the meantime is left out."""
        state, before = state_of(path), self._listing.files.get(path.name)
        if state is None or self._states.get(path.name) == state:
            return False
        try:
            is_new = not (before and is_same(path, before))
            entry = self._store.upload(path, before, self._beat) if is_new else before
        except FileNotFoundError:
            if path.exists():
                raise
            return False
        self._listing.files[path.name] = entry
        self._states[path.name] = state
        return is_new

    def _publish(self) -> None:
        """Write the list: the checkpoints that a disk would have kept, and what else the disk has."""
        self._beat(at_once=True)
        solver, files = self._cfg.SOLVER, self._listing.files
        last = max((entry.iteration for entry in files.values()), default=-1)
        every = solver.CHECKPOINT_KEPT_EVERY * solver.CHECKPOINT_PERIOD
        past = {*outdated(files, last, newest=solver.CHECKPOINTS_KEPT, every=every)}
        others = {name for name, entry in files.items() if entry.iteration < 0}
        past |= {name for name in others if not (self._folder / name).exists()}
        kept = {name: entry for name, entry in files.items() if name not in past}
        listing = Listing(self._listing.run, kept)
        if listing == self._published:
            return
        self._store.publish(listing)
        places = {entry.place for entry in kept.values()}
        self._outdated |= {entry.place for entry in self._published.files.values()}
        self._outdated -= places
        self._listing, self._published = Listing(listing.run, {**kept}), listing


def state_of(path: Path) -> tuple[int, int] | None:
    """By which a file is seen to be another one; None where it is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def is_same(path: Path, entry: Entry) -> bool:
    """Whether a file has the bytes that a list has."""
    return path.stat().st_size == entry.size and file_digest(path) == entry.sha256
