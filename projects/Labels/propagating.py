"""Labels of a frame or more, propagated through videos by the propagation that DAVIS is evaluated with.

Frames follow from the last given mask before them, those before the first given one from that, backwards. Each such
pass is a part of its own, and resumes after an interruption with what it has written.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from projects.FrozenEvaluations.propagation import MaskPropagation, write_mask
from projects.Labels.given_masks import Given
from projects.Labels.propagated_files import MASKS, mask_file
from projects.Labels.video_frames import Video
from revisit.arrays import read_array
from revisit.checkpoint import RANDOM
from revisit.checkpoint.backbone_file import load_backbone
from revisit.checkpoint.convert import as_rgb
from revisit.checkpoint.start import Start
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.reader import require_record
from revisit.data.sources.labels import read_ids
from revisit.engine.same_experiment import plain_config
from revisit.engine.setup import make_config
from revisit.errors import expect, first_few
from revisit.files import make_folder, written_whole
from revisit.jobs.record import left_by_earlier_call
from revisit.jobs.runner import Parts, PerProcess, Runner
from revisit.keys import is_read
from revisit.network.network import Network
from revisit.progress import progress

from detectron2.config import CfgNode

PARTS = "parts"  # below an output, until all is done: what a pass needs to resume

logger = logging.getLogger(__name__)


class Pass(NamedTuple):
    """Frames of a video in the order in which they follow from each other; the mask of the first one is given."""

    title: str
    frames: list[Path]
    masks: list[Path]  # of each, which is written
    labels: Path  # the folder of the soft labels of the last frames that were written


def passes_of(video: Video, numbers: Sequence[int], output: Path) -> list[Pass]:
    """The passes that make the masks of all frames, by the numbers of those with given masks, in order."""
    count = len(video.frames)
    spans = [range(start, stop) for start, stop in pairwise((*numbers, count))]
    spans += [range(numbers[0], -1, -1)] if numbers[0] else []
    passes = []
    for span in spans:
        frames = [video.frames[number] for number in span]
        masks = [mask_file(output, video, frame) for frame in frames]
        labels = output / PARTS / f"{video.name}_{span.start}_{span.stop}"
        passes.append(Pass(video.name, frames, masks, labels))
    return passes


def config_and_network(weights: str, config_file: str, opts: Sequence[str]) -> tuple[CfgNode, Network]:
    """A recipe of the evaluation's, for the network and the pixels of any weights, and that network.

    Raises UserError for weights that no backbone is found in, or that the recipe does not fit.
    """
    if weights == RANDOM:
        cfg = make_config(config_file, opts, seed=0)
        return cfg, Network.of_config(cfg)
    backbone = as_rgb(load_backbone(weights))
    keys = Start(weights, None, backbone.flags, backbone.licence).keys
    cfg = make_config(config_file, [*chain(*keys.items()), *opts], seed=0)
    network = Network.of_config(cfg)
    missing = network.network.load_state_dict(backbone.tensors, strict=False).missing_keys
    lacking = [name for name in missing if not name.endswith("num_batches_tracked")]
    expect(
        not lacking, f"{weights} lacks {len(lacking)} tensors of the network of {config_file}, such as {lacking[:1]}"
    )
    return cfg, network


def network_again(weights: str, config_file: str, opts: Sequence[str]) -> Network:
    """That of ``config_and_network``, in another process."""
    return config_and_network(weights, config_file, opts)[1]


def settings_of(cfg: CfgNode, network: Network) -> dict[str, Any]:
    """What masks depend on, besides frames and given masks."""
    keys = {key: value for key, value in plain_config(cfg).items() if is_read(cfg, key)}
    kept = {key: value for key, value in keys.items() if key.startswith(("LABEL_PROPAGATION.", "MODEL.", "INPUT."))}
    return {"network": network.digest(pixels=True), **{key: kept[key] for key in kept if key != "MODEL.DEVICE"}}


def write_given(output: Path, video: Video, given: Given) -> None:
    """The masks of the frames whose objects are given. Raises UserError where they do not fit these."""
    make_folder(output / MASKS / video.name, "--output")
    for number, ids in given.ids(video):
        write_mask(mask_file(output, video, video.frames[number]), ids)


def propagate(cfg: CfgNode, network: PerProcess, passes: Sequence[Pass], output: Path, runner: Runner) -> None:
    """Write the masks of all passes that are not there.

    Raises SystemExit in a process that has made its share, where another one finds all of them.
    """
    place, lock = output / PARTS, output / f"{PARTS}.lock"
    place.mkdir(exist_ok=True)
    own = {one.labels.relative_to(place).parts[0] for one in passes}
    others = sorted({path.name for path in place.iterdir()} - own)
    expect(not others, f"{place} is for parts of the work, and has {first_few(others)}: give another --output")
    present, make = partial(_complete, passes), partial(_make, cfg, network, passes)
    runner.run(Parts("videos", range(len(passes)), present, make, str(place), lock))


def remove_parts(output: Path, passes: Sequence[Pass]) -> None:
    """What is needed to resume, when all is done; what somebody has put next to it meanwhile stays."""
    for one in passes:
        shutil.rmtree(one.labels, ignore_errors=True)
        with suppress(OSError):
            os.removedirs(one.labels.parent)  # those that are empty
    (output / f"{PARTS}.lock").unlink(missing_ok=True)


def _complete(passes: Sequence[Pass]) -> list[int]:
    """Masks are written in the order of a pass."""
    return [number for number, each in enumerate(passes) if each.masks[-1].is_file()]


def _make(cfg: CfgNode, network: PerProcess, passes: Sequence[Pass], numbers: Sequence[int]) -> Iterator[int]:
    for number in numbers:
        _follow(cfg, network(), passes[number])
        yield 1


def _follow(cfg: CfgNode, network: Network, each: Pass) -> None:
    """Write the masks of a pass after those that are there, each after its soft labels."""
    options, pixels = cfg.LABEL_PROPAGATION, pixel_format(cfg)
    make_folder(each.labels, "--output")
    done = _num_done(each, options.NUM_CONTEXT)

    def frame(number: int) -> np.ndarray:
        return require_record({"file_name": each.frames[number]}, pixels)

    propagation = MaskPropagation(network, options, frame(0), read_ids(each.masks[0]))
    for number in _context(done, options.NUM_CONTEXT):
        path = _labels_file(each, number)
        with left_by_earlier_call(path):
            labels = torch.from_numpy(read_array(path))
        propagation.remember(number, frame(number), labels)
    todo = range(done + 1, len(each.frames))
    for number in progress(each.title, "frame", todo, total=len(each.frames), done=done + 1):
        mask = propagation.step(frame(number))
        with written_whole(_labels_file(each, number), lasting=False) as temporary, open(temporary, "wb") as file:
            np.save(file, propagation.labels.cpu().numpy())
        write_mask(each.masks[number], mask)
        _labels_file(each, number - max(1, options.NUM_CONTEXT)).unlink(missing_ok=True)


def _labels_file(each: Pass, number: int) -> Path:
    return each.labels / f"{number}.npy"


def _context(last: int, count: int) -> range:
    """The numbers of the frames that the one after ``last`` looks at, without the first."""
    return range(max(1, last - count + 1), last + 1)


def _num_done(each: Pass, count: int) -> int:
    """The last frame that is written, with all that the next one needs; 0 where there is none but the given one."""
    kept = {int(path.stem) for path in each.labels.glob("*.npy")}
    done = [number for number in kept if each.masks[number].is_file() and kept.issuperset(_context(number, count))]
    return max(done, default=0)
