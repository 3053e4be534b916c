"""Counter-based random numbers: every draw is a pure function of what it is for.

No generator lives in a worker or a rank. Whoever needs random numbers asks for a fresh generator by
naming the run's seed, the stream (what the numbers are for) and the counters (which epoch, which
image, which iteration). Worker count, process count and restarts therefore never change a run.
"""

import enum
import random

import numpy as np
import torch


class Stream(enum.IntEnum):
    """What a generator is for. Numbers are part of the recipe: never renumber, only append."""

    SHUFFLE = 1  # order of the data set in an epoch: counters (epoch,)
    VIEWS = 2  # crops and augmentations of one image: counters (epoch, image index)
    SHUFFLE_BN = 3  # permutation of the keys' batch: counters (iteration, part of the step)
    TOY_SCENE = 4  # one ToyScenes image: counters (split, image index)
    TOY_VIDEO = 5  # one ToyScenes video: counters (video index,)
    STEP = 6  # what a model draws in a training step, such as dropout: counters (iteration, rank)
    FINETUNE_ORDER = 7  # order of the data set in an epoch of finetuning: counters (epoch,)
    FINETUNE_SAMPLE = 8  # how one sample of finetuning is cut, scaled and flipped: counters (its place in the run,)
    ANNOTATIONS = 9  # what a method adds to the views of one image: counters (epoch, image index)


def counter_rng(seed: int, stream: int, *counters: int) -> np.random.Generator:
    """A generator that depends on its arguments alone.

    Args:
        seed: the run's seed, 0 <= seed < 2**63.
        stream: what the numbers are for, one of Stream, or in a plug-in a number from 1000 on; different streams are
            independent.
        counters: at most two non-negative integers, e.g. (epoch, image index).

    Philox turns a (key, counter) pair into random bits. The key is (seed, stream), the high half of the
    256-bit counter holds ``counters``; the low half counts the draws, so 2**128 draws fit between two
    neighbouring generators.
    """
    if len(counters) > 2:
        raise ValueError(f"at most two counters, got {counters}")
    first, second = (*counters, 0, 0)[:2]
    words = np.array([0, 0, second, first], dtype=np.uint64)
    key = np.array([seed, int(stream)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=words))


def seed_global_generators(seed: int, stream: Stream, *counters: int) -> None:
    """Make what others draw next, from the global generators of random, numpy and torch, depend on the arguments alone.

    Detectron2 draws from these: its augmentations from numpy's, sampling of regions and dropout from torch's.
    """
    words = counter_rng(seed, stream, *counters).integers(2**32, size=3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))
