"""Weights and what describes them, between a folder of this machine and a place that others reach: a repository of
Hugging Face's hub, ``hf://USER/NAME``, or any URL that fsspec opens."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec
import huggingface_hub

from revisit.checkpoint.flags import check_pair
from revisit.errors import UserError, expect, first_line, without_secrets
from revisit.files import is_url, make_folder, plain_name, written_whole

WEIGHTS = (".safetensors", ".pth")  # which can be read without running code from them
BESIDE = (".yaml", ".json", ".md")
HUB = "hf://"
README = "README.md"  # the page that the hub shows


class Place:
    """A folder at a URL."""

    def __init__(self, url: str):
        expect(is_url(url), f"{url} is no URL: expected {HUB}USER/NAME, or another that fsspec opens, such as s3://")
        self._url = url.rstrip("/")
        with _contact(self._url):
            self._filesystem, self._root = fsspec.url_to_fs(self._url)

    def __str__(self) -> str:
        return without_secrets(self._url)

    def sizes(self) -> dict[str, int | None]:
        """Bytes of the files directly there, by name, None where the place does not say it in its list; nothing of a
        folder that is not there yet. Raises UserError for a repository that is not there, or that nobody without the
        right token sees."""
        with _contact(self._url):
            self._filesystem.invalidate_cache()
            try:
                entries = self._filesystem.ls(self._root, detail=True)
            except FileNotFoundError as error:
                expect(not self._url.startswith(HUB), f"{self}: {first_line(error)}; a new one: {_NEW_REPOSITORY}")
                return {}
        return {Path(entry["name"]).name: entry["size"] for entry in entries if entry["type"] == "file"}

    def size(self, name: str) -> int | None:
        """Bytes of one file, asked for alone; None where a server does not say it before it sends them."""
        with _contact(self._url):
            return self._filesystem.info(f"{self._root}/{name}").get("size")

    def put(self, files: dict[str, Path]) -> None:
        """Write files under these names. On the hub they are one commit: nobody sees a part of them."""
        with _contact(self._url):
            if self._url.startswith(HUB):
                self._commit(files)
                return
            self._filesystem.makedirs(self._root, exist_ok=True)
            for name, path in files.items():
                self._filesystem.put_file(str(path), f"{self._root}/{name}")

    def _commit(self, files: dict[str, Path]) -> None:
        there = self._filesystem.resolve_path(self._root)
        folder = f"{there.path_in_repo}/" if there.path_in_repo else ""
        added = [huggingface_hub.CommitOperationAdd(f"{folder}{name}", str(path)) for name, path in files.items()]
        where = {"repo_type": there.repo_type, "revision": there.revision}
        huggingface_hub.HfApi().create_commit(there.repo_id, added, commit_message="revisit push", **where)

    def get(self, name: str, path: Path) -> None:
        """Write a file of this place to a path of this machine."""
        with _contact(self._url):
            self._filesystem.get_file(f"{self._root}/{name}", str(path))


_NEW_REPOSITORY = "huggingface.co/new, or hf repos create USER/NAME"
_LOG_IN = "hf auth login, or HF_TOKEN in the environment"


@contextmanager
def _contact(url: str) -> Iterator[None]:
    """What the libraries of a store raise in the block becomes one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        code = getattr(getattr(error, "response", None), "status_code", None)
        way_out = "is there a network, and does its machine answer?"
        if code in (401, 403):
            way_out = f"log in as somebody who may do that: {_LOG_IN}"
        elif isinstance(error, ValueError | ImportError):
            way_out = f"expected {HUB}USER/NAME, or a URL that fsspec opens here"
        raise UserError(f"{url}: {type(error).__name__}: {first_line(error)}: {way_out}") from error


def described(source: Path) -> dict[str, Path]:
    """By name, the files to push: those of a folder, or weights with what describes them.

    Raises UserError where there are no weights, or weights that nothing describes, or whose flags are of others.
    """
    if source.is_dir():
        is_run = (source / "last_checkpoint").is_file()
        expect(not is_run, f"{source} is a run's folder: name the weights in it that you want to push")
        found = sorted(path for path in source.iterdir() if path.suffix in (*WEIGHTS, *BESIDE) and path.is_file())
    else:
        expect(source.is_file(), f"{source}: no such file or folder: expected weights, or a folder with some")
        found = [source, *_description(source)]
    files = {path.name: path for path in found}
    _check_weights(files, str(source))
    for path in found:
        silent = path.suffix in WEIGHTS and not _description(path)
        way_out = "give it one by tools/convert_to_d2.py or tools/export_weights.py"
        expect(not silent, f"{path} has no {path.stem}.yaml or {path.stem}.md next to it, nor a config: {way_out}")
        if path.suffix in WEIGHTS:
            check_pair(path)
    return files


def _description(weights: Path) -> list[Path]:
    own = [weights.with_suffix(suffix) for suffix in (".yaml", ".md")]
    of_folder = [weights.with_name(name) for name in ("config.yaml", "config.json")]
    own = [path for path in own if path.is_file()]
    return own or [path for path in of_folder if path.is_file()]


def _check_weights(names: dict[str, object], where: str) -> None:
    found = f"found {', '.join(sorted(names)) or 'nothing'}"
    expected = f"expected a file that ends in {' or '.join(WEIGHTS)}"
    expect(any(name.endswith(WEIGHTS) for name in names), f"{where} has no weights: {found}; {expected}")


def push(source: Path, url: str, *, replace: bool = False) -> list[str]:
    """Copy ``described(source)`` to a place; returns the names there. A model card is the page of a repository, too."""
    files, place = described(source), Place(url)
    if url.startswith(HUB):
        expect(huggingface_hub.get_token() is not None, f"{url}: no token, so nothing can be written: {_LOG_IN}")
    present = place.sizes()
    _check_free([name for name in files if name in present], str(place), replace)
    cards = [path for name, path in files.items() if name.endswith(".md")]
    if url.startswith(HUB) and len(cards) == 1 and _is_page_ours(place, present, cards[0].name):
        files = {README: cards[0], **files}
    place.put(files)
    return list(files)


def _is_page_ours(place: Place, present: dict[str, int | None], card: str) -> bool:
    """Whether nobody has written the page of a repository: it has none, or its card, from an earlier push."""
    if README not in present:
        return True
    if present[README] != present.get(card):
        return False
    with TemporaryDirectory() as folder:
        page, earlier = Path(folder, "page"), Path(folder, "card")
        place.get(README, page)
        place.get(card, earlier)
        return page.read_bytes() == earlier.read_bytes()


def pull(url: str, folder: Path, *, replace: bool = False) -> list[str]:
    """Copy weights, and what describes them, from a place into a folder; returns their names.

    A file is there whole or not at all.
    """
    place = Place(url)
    sizes = {name: size for name, size in place.sizes().items() if name.endswith((*WEIGHTS, *BESIDE))}
    for name in sizes:
        plain_name(name, str(place))
    _check_weights(sizes, str(place))
    make_folder(folder, "the folder to write to")
    _check_free([name for name in sizes if (folder / name).exists()], str(folder), replace)
    for name, size in sizes.items():
        size = place.size(name) if size is None else size  # a web server's list has none
        with written_whole(folder / name) as temporary:
            place.get(name, temporary)
            got = temporary.stat().st_size
            came = f"{place}/{name} has {size} bytes, of which {got} came"
            expect(size in (got, None), f"{came}: give the same command again")
    return list(sizes)


def _check_free(names: list[str], where: str, replace: bool) -> None:
    listed = ", ".join(names)
    expect(replace or not names, f"{where} already has {listed}: expected another place, or --replace")
