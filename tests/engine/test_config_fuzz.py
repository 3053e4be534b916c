"""Every key of five recipes with values that nobody meant: each trains a step or ends in one line, not in a traceback.

`make test` tries 10 seeded cases, `make fuzz` 3,000; FUZZ_FIRST is the seed of the first.
"""

import importlib
import os
import random
import re
import resource
import time
import traceback
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml
from commands import ROOT

from projects.ToyScenes import data_sets
from revisit.engine.dry_run import dry_run
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.setup import make_config, plan
from revisit.errors import UserError, translated
from revisit.keys import dotted_keys
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.data import MetadataCatalog
from detectron2.engine import TrainerBase
from detectron2.utils.env import seed_all_rng

CASES, FIRST = int(os.environ.get("FUZZ_CASES", 10)), int(os.environ.get("FUZZ_FIRST", 0))
NARROW = "MODEL.RESNETS.DEPTH 18 MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
NARROW += " MODEL.DEVICE cpu DATALOADER.NUM_WORKERS 0 SOLVER.WARMUP_ITERS 0 SOLVER.MAX_ITER 10 SEED 1"
VIEWS = "VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 16 SOLVER.IMS_PER_BATCH 4 MOCO.QUEUE_SIZE 16 MOCO.EMBEDDING_DIM 8"
VIEWS += " MOCO.BN_GROUP 2 NEIGHBORS.NUM_NEIGHBORS 3 NEIGHBORS.WARMUP_EPOCHS 0 KNN_EVAL.IMAGE_SIZE 32"
VIEWS += " SOLVER.AMP.ENABLED False"
DENSE = "SOLVER.IMS_PER_BATCH 2 MODEL.SEM_SEG_HEAD.CONVS_DIM 8 INPUT.CROP.SIZE [48,48]"
TOYS = "DATASETS.TRAIN ('toy_objects_train',)"
RECIPES = {
    "toy/pretrain": VIEWS,
    "toy/detection": "SOLVER.IMS_PER_BATCH 2 SOLVER.STEPS (5,) INPUT.MIN_SIZE_TRAIN (64,) INPUT.MIN_SIZE_TEST 64 "
    "TEST.PRECISE_BN.NUM_ITER 1 MODEL.ROI_BOX_HEAD.FC_DIM 16",
    "toy/segmentation_voc": f"{DENSE} SOLVER.STEPS () SOLVER.STEP_EPOCHS ()",
    "toy/depth": DENSE,
    "pretrain/moco_mc_cc": f"{VIEWS} {TOYS} DATASETS.TEST ('toy_objects_heldout',) KNN_EVAL.BANK toy_objects_train",
}
_PIXELS = r"^MODEL\.(RPN|ROI|RETINA|PANOPTIC|FPN|ANCHOR|PROPOSAL)|^(MOCO|KNN|DENSECL|VIEWS)"
_VIEWS = r"^MODEL\.(RPN|ROI|RETINA|PANOPTIC|FPN|ANCHOR|PROPOSAL|SEM_SEG|DEPTH)|^(INPUT|DENSECL)"
UNREAD = {  # keys that a recipe hardly reads, which are tried a tenth as often
    "toy/pretrain": _VIEWS,
    "toy/detection": r"^MODEL\.(RETINA|PANOPTIC|FPN|SEM|DEPTH|ROI_MASK|ROI_KEY|ROI_BOX_C)|^(MOCO|KNN|DENSECL|VIEWS)",
    "toy/segmentation_voc": _PIXELS,
    "toy/depth": _PIXELS,
    "pretrain/moco_mc_cc": _VIEWS,
}
KINDS = ("type", "sign", "magnitude", "emptiness", "nan", "unicode")
OTHERS = (1, -1.5, True, None, "text", (1,), [], {"A": 1}, [[]], ("a", 2))
STRANGE = ("ünïcødé/图片", "\u202e", "a\x00b", "٣", " ", "x" * 300, "\n", "'", "{", "((((", "%s", "~", "\udcff", "://")
MONITORED = ("TEST.", "KNN_EVAL.", "MONITOR.", "DATASETS.TEST", "INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST", "_TEST")


def mutated(value: object, kind: str, rng: random.Random) -> object:
    """Another value for a key, of one kind."""
    if kind == "type":
        return rng.choice(OTHERS)
    if kind == "emptiness":
        return rng.choice(("", (), [], None, 0, [[]], {}))
    if kind == "unicode":
        strange = rng.choice(STRANGE)
        return [strange] if isinstance(value, list | tuple) and rng.random() < 0.7 else strange
    if isinstance(value, list | tuple) and value:
        if kind == "magnitude" and rng.random() < 0.4:
            return rng.choice(([*value, *value], value[:-1], list(reversed(value))))
        place = rng.randrange(len(value))
        return [*value[:place], mutated(value[place], kind, rng), *value[place + 1 :]]
    if kind == "nan":
        return rng.choice((float("nan"), float("inf"), -float("inf")))
    if isinstance(value, bool):
        return not value
    if isinstance(value, str | list | tuple) or value is None:
        return rng.choice((-1, 10**9, f"-{value}", f"{value}{value}", str(value).upper()))
    if kind == "sign":
        return -value or -1
    small, large = ((0, 1, 2), (10**9, 10**19, 10**400)) if isinstance(value, int) else ((0.0, 1e-300, 1), (1e9, 1e300))
    return rng.choice((*small, *large, value * 2 + 1, value // 2 if isinstance(value, int) else value / 1000))


@pytest.fixture
def attempt(toy_datasets, tmp_path, monkeypatch):
    """Plan, and where nothing is wrong train, one step of a case by its seed; returns the case and how it ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *args, **options: None)  # takes minutes, and no key
    for name in [name for name in MetadataCatalog.list() if name.startswith("toy_")]:
        MetadataCatalog.pop(name)  # of trees in another place
    importlib.reload(data_sets)
    files = {name: f"{ROOT}/configs/{name}.yaml" for name in RECIPES}
    options = {name: f"{NARROW} {own}".split(" ") for name, own in RECIPES.items()}
    defaults = {name: dotted_keys(make_config(files[name], options[name])) for name in RECIPES}

    def call(seed: int) -> tuple[str, str]:
        rng = random.Random(seed)
        name = rng.choice(list(RECIPES))
        kind = rng.choices(KINDS, (2, 2, 5, 2, 2, 2))[0]
        keys = [key for key in defaults[name] if rng.random() < 0.1 or not re.search(UNREAD[name], key)]
        key = rng.choice(keys)
        value = mutated(defaults[name][key], kind, rng)
        file, opts, typed = files[name], ["OUTPUT_DIR", "out", *options[name]], str(value)
        if (rng.random() < 0.5 or kind == "nan") and not any(map(typed.__contains__, "\udcff\x00")):
            node = list(value) if isinstance(value, tuple) else value
            for part in reversed(key.split(".")):
                node = {part: node}
            while key in opts:  # what the file says is not to be overridden
                del opts[opts.index(key) : opts.index(key) + 2]
            Path("mutated.yaml").write_text(yaml.safe_dump({"_BASE_": file, **node}))
            file = "mutated.yaml"
        else:
            opts += [key, typed]
        case = f"case {seed}: {name} {key} {value!r:.80} ({kind}, {'file' if file == 'mutated.yaml' else 'typed'})"
        print(case, flush=True)  # with -s, should it not end
        try:
            plan_and_train_a_step(file, opts, key)
        except UserError as error:
            text = str(error)
            return kind, "refused" if text and "\n" not in text else f"{case}: more than a line: {text}"
        except Exception:
            return kind, f"{case}\n{traceback.format_exc()[-1500:]}"
        return kind, "passed"

    return call


def plan_and_train_a_step(config_file: str, opts: list[str], key: str) -> None:
    """What ``tools/train_net.py`` does, for a single step; what is evaluated is, where the key may matter to it."""
    switches = {"config_file": config_file, "opts": opts, "resume": False, "eval_only": False}
    planned = plan(Namespace(**switches, dry_run=True), 1)
    with translated("building the network"):
        dry_run(planned.cfg, planned.facts, planned.log)
    cfg = plan(Namespace(**switches, dry_run=False, accept=()), 1).cfg
    cfg.freeze()
    seed_all_rng(cfg.SEED)
    with translated("building the network, its data and its optimiser"):
        trainer = (PretrainTrainer if method_of(cfg) else FinetuneTrainer)(cfg)
    if not any(word in key for word in MONITORED):
        trainer.test = lambda *_: {}
    trainer.resume_or_load(resume=False)
    TrainerBase.train(trainer, 0, 1)


@pytest.mark.fuzz
def test_a_mutated_recipe_trains_or_is_refused_in_one_line(attempt):
    counts: dict[str, Counter] = {kind: Counter() for kind in KINDS}
    failed, seconds = [], {}
    for seed in range(FIRST, FIRST + CASES):
        begin = time.perf_counter()
        kind, ending = attempt(seed)
        seconds[seed] = time.perf_counter() - begin
        short = ending if ending in ("passed", "refused") else "failed"
        counts[kind][short] += 1
        if short == "failed":
            failed.append(ending)
    print(*(f"{kind:10} {dict(count)}" for kind, count in counts.items()), sep="\n")
    slowest, memory = max(seconds, key=seconds.get), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"slowest: case {slowest}, {seconds[slowest]:.1f} s; largest memory: {memory / 2**20:.2f} GiB")
    assert not failed, f"{len(failed)} of {CASES}:\n" + "\n".join(failed)
    assert sum(count["passed"] for count in counts.values()) > CASES // 10
