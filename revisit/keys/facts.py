"""What a key decides itself by, and what it decides."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from detectron2.config import CfgNode


@dataclass(frozen=True)
class Facts:
    """What is known of a run in addition to its config."""

    key: str = ""  # which is to be decided
    images: int | None = None  # that DATASETS.TRAIN gives to learn from; None: not counted yet
    records: Sequence[dict] = ()  # of images that are on disk
    processes: int | None = None  # over all machines; None: not known
    stated: Sequence[Collection[str]] = ()  # keys by where they are stated: files, a base first, then the command line
    before: Mapping[str, object] = field(default_factory=dict)  # settings of the part that a resumed run continues
    done: int = 0  # iterations of that part
    images_before: int = 0  # that it learned from; 0: not known
    for_here: bool = True  # whether it will run on this machine
    seed: int = -1  # what a negative SEED becomes; negative: a random number
    launched: bool = False  # whether all its processes are running, and decide together

    @property
    def typed(self) -> set[str]:
        """Keys of the command line."""
        return set(*self.stated[-1:])

    def stated_nearer(self, key: str) -> set[str]:
        """Other keys that are stated nearer to the user than a key: on the command line, or in a file based on its."""
        *files, typed = self.stated or ((),)
        places = [place for place, keys in enumerate(files) if key in keys]
        last = len(files) if key in typed or not places else places[-1] + 1
        return set(typed).union(*files[last:]) - {key}


class Decision(NamedTuple):
    """The value of a key, and why."""

    value: object
    why: str
    others: Mapping[str, object] = {}  # values of keys that it decides too, but for those that are stated nearer
    kept: bool = False  # whether a resumed run keeps what its earlier part decided
    level: int = logging.INFO  # of the line that is logged


# Of a config, whose keys ``after`` are decided, and the facts. None: the value stays as it is.
Resolve = Callable[[CfgNode, Facts], Decision | None]
