"""Detectron2's checkpointer, made strict: written whole or not at all, and what cannot be loaded whole is refused."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from revisit.checkpoint.convert import BackboneWeights, for_channels
from revisit.checkpoint.detector_parts import (
    for_both_encoders,
    of_backbone,
    part_flags,
    parts_that_fit,
    predictors_for,
    report_parts,
)
from revisit.checkpoint.flags import (
    IMAGENET,
    check_stated_flags,
    flag_keys,
    flags_of,
    is_folded,
    is_for_photographs_alone,
    read_flags,
)
from revisit.checkpoint.named_weights import is_named, weights_file
from revisit.checkpoint.reading import (
    TOP_LEVEL,
    UnreadableCheckpointError,
    for_prediction,
    read_checkpoint,
    require_numbers,
    require_tensors,
    shapes_of,
    unwrapped,
)
from revisit.checkpoint.run_folder import checkpoints_of_run, is_of_run
from revisit.checkpoint.run_layout import start_of
from revisit.checkpoint.sources import origin_of, recognised
from revisit.data.sources.class_names import names_of
from revisit.errors import UserError, expect, first_few
from revisit.files import written_whole
from revisit.keys import SWITCH, declare, network_of, value_of
from revisit.modeling.backbone.description import (
    BackboneDescription,
    Flags,
    backbone_keys,
    describe,
    undescribed,
)
from revisit.modeling.distributed import raised_by_all
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.checkpoint import DetectionCheckpointer
from detectron2.checkpoint.c2_model_loading import align_and_update_state_dicts
from detectron2.config import CfgNode
from detectron2.utils import comm

logger = logging.getLogger(__name__)


declare("MODEL.ALLOW_PARTIAL_BACKBONE", False, "Finetune from a part of its tensors.", SWITCH, may_change=True)


class RevisitCheckpointer(DetectionCheckpointer):
    """Saves the flags of its config with every checkpoint, and compares them whenever it loads.

    A checkpoint gets its name when it is completely on the disk. Resuming takes the newest whole one of OUTPUT_DIR, and
    demands every tensor in its very shape (fvcore would drop a queue of another length with a warning). Loading
    MODEL.WEIGHTS demands a value for every tensor of the backbone, unless MODEL.ALLOW_PARTIAL_BACKBONE; heads may be
    new. In pretraining the file's backbone starts both encoders, and nothing else is taken. A backbone
    without a description, which would say which tensors those are, is refused.

    Args:
        trainer: what else resumes; its ``check_state_dict`` refuses another experiment's checkpoint.
    """

    trains = True  # after loading; else its weights have to be those of the whole model

    def __init__(self, model: nn.Module, cfg: CfgNode, trainer: Any = None):
        super().__init__(model, cfg.OUTPUT_DIR, **({"trainer": trainer} if trainer else {}))
        self._cfg = cfg
        self._trainer = trainer
        self._resuming = False
        self._path = self._named = ""
        self._start: dict[str, str] = {}  # where the weights come from that the run started from

    def save(self, name: str, **kwargs: object) -> None:
        """Write OUTPUT_DIR/NAME.pth. Raises OSError where the disk is full; older checkpoints are as they were."""
        path = Path(self.save_dir) / f"{name}.pth"
        content = {key: value.state_dict() for key, value in {"model": self.model, **self.checkpointables}.items()}
        logger.info(f"saving checkpoint to {path}")
        if method := method_of(self._cfg):
            content["method"] = method.__name__
        elif names := self._class_names():
            content["classes"] = names  # of the first, which the others follow
        if self._start:
            content["start"] = self._start
        if prefixes := network_of(self._cfg).training_only:  # such as a copy that learns
            content["training_only"] = list(prefixes)
        content = {**content, "flags": self._flags(content["model"]), **kwargs}
        with written_whole(path) as temporary, open(temporary, "wb") as file:  # torch writes the name of a path into it
            torch.save(content, file)

    def _class_names(self) -> list[str]:
        """Of the first of DATASETS.TRAIN, whose classes a finetuned network has; [] where nothing says them."""
        return names_of(self._cfg.DATASETS.TRAIN[0]) if self._cfg.DATASETS.TRAIN else []

    def _flags(self, tensors: dict) -> dict:
        """Of the config; and that batch norm has to stay frozen, where it has no statistics and the config keeps it
        so."""
        description = describe(self.model)
        flags = flags_of(self._cfg, description)
        if method_of(self._cfg):
            flags |= part_flags(tensors, self._cfg)
        folded = description.FOLDED if description else {}
        stays_frozen = all(value_of(self._cfg, key) == value for key, value in folded.items())
        if folded and stays_frozen and is_folded({key: tensors[key] for key in backbone_keys(self.model)}):
            flags |= folded
        return flags

    def resume_or_load(self, path: str, *, resume: bool = True) -> dict:
        newest = self._find_newest() if resume else ""
        self._resuming = bool(newest)
        return self.load(newest) if newest else self.load(path, checkpointables=[])

    def load(self, path: str, *args: object, **kwargs: object) -> dict:
        if path:
            file = weights_file(path)  # also so that loading finds that of a URL on this machine
            path = str(file) if is_named(path) else path
        self._named = path
        return super().load(path, *args, **kwargs)

    def has_checkpoint(self) -> bool:
        return self._resuming

    def _find_newest(self) -> str:
        """The newest whole checkpoint of OUTPUT_DIR, which the main process finds for all; "" if there is none."""
        with raised_by_all():
            paths = checkpoints_of_run(Path(self.save_dir)) if comm.is_main_process() else []
            newest = next((str(path) for path in paths if _is_whole(path)), "")
            expect(
                not paths or newest != "",
                f"none of the {len(paths)} checkpoints in {self.save_dir} is whole: restore one, or start elsewhere",
            )
        return comm.all_gather(newest)[0]

    def _load_file(self, filename: str) -> dict:
        self._path = filename
        content = read_checkpoint(Path(filename))
        if filename.endswith(".pkl") and not content.keys() >= {"model", "__author__"}:
            blobs = content.get("blobs", content)  # Detectron1's
            require_tensors(blobs, "blobs")
            tensors = {key: value for key, value in blobs.items() if not key.endswith("_momentum")}
            return {"model": tensors, "__author__": "Caffe2", "matching_heuristics": True}
        if "model" not in content:
            theirs = [name for name in TOP_LEVEL if isinstance(content.get(name), dict)]
            expect(
                not theirs,
                f"{filename} has its tensors under {first_few(theirs)}, as other programs save them: convert it "
                f"first, tools/convert_to_d2.py {filename} backbone.pth",
            )
            content = {"model": content}
        require_tensors(content["model"], "model")
        content = {**content, "model": unwrapped(content["model"])}
        return content if self._resuming and self.trains else for_prediction(content)

    def _load_model(self, checkpoint: dict) -> object:
        """The steps of a load, in their order. What is loaded is this run's own, or what it starts from."""
        return self._resume(checkpoint) if self._resuming else self._start_from(checkpoint)

    def _resume(self, checkpoint: dict) -> object:
        misfit = self._misfit(checkpoint["model"])
        if self._trainer:  # which says more than tensors that do not fit
            self._trainer.check_state_dict(checkpoint["trainer"], fits=not misfit)
        flags = checkpoint.get("flags") or read_flags(self._named)[0]
        check_stated_flags(flags, self._cfg, describe(self.model), self._path, is_folded=False)
        expect(not misfit, misfit)
        self._start = start_of(checkpoint)
        return super()._load_model(checkpoint)

    def _start_from(self, checkpoint: dict) -> object:
        tensors = checkpoint["model"]
        description = describe(self.model)
        if description is None:
            raise undescribed(f"the backbone, a {type(getattr(self.model, 'backbone', self.model)).__name__},")
        stated = checkpoint.get("flags")
        flags, source, licence = (stated, "", "") if stated else read_flags(self._named)
        self._start = origin_of(checkpoint, Path(self._named).name, source, licence)
        folded = flags is None and self.trains and is_folded(of_backbone(tensors))
        check_stated_flags(flags, self._cfg, description, self._path, is_folded=folded)
        checkpoint = {**checkpoint, "model": self._for_channels(tensors, flags or {}, description)}
        self._check_numbers(tensors)
        taken = self._named_plainly({**checkpoint, "model": self._taken(checkpoint, flags or {})})
        incompatible = super()._load_model(taken)
        self._check_backbone_is_whole(incompatible.missing_keys, checkpoint)
        missing = incompatible.missing_keys
        if missing and not self.trains:
            raise UserError(
                f"MODEL.WEIGHTS {self._path} lacks {len(missing)} tensors of this model, the first {missing[0]}: "
                "expected a finetuned model of this config, such as model_final.pth"
            )
        if self.trains and not method_of(self._cfg):
            report_parts(self.model.state_dict().keys(), missing, self._path)
        return incompatible

    def _for_channels(self, tensors: dict, flags: Flags, description: BackboneDescription) -> dict:
        """Those of a network for photographs whose images have channels: with its first convolution for these."""
        if not flags or not is_for_photographs_alone(flags, self._cfg):
            return tensors
        expect(
            self.trains,
            f"{self._path} sees photographs, and the images have channels: expected weights that were trained on "
            "such images",
        )
        stated = {key: flags[key] for key in flag_keys(description) if key in flags}
        weights = BackboneWeights(tensors, {**IMAGENET, **stated}, description, "")
        return for_channels(weights, self._cfg).tensors

    def _taken(self, checkpoint: dict, flags: Flags) -> dict:
        """The tensors of a file that this model takes, under its names."""
        tensors = checkpoint["model"]
        if method_of(self._cfg):
            return for_both_encoders(tensors, self.model, self._path)
        tensors = parts_that_fit(tensors, flags, self.model.state_dict(), self._cfg, self._path)
        theirs = checkpoint.get("classes")
        ours = self._class_names()
        return predictors_for(tensors, ours, theirs, self._path) if self.trains and theirs and ours else tensors

    def _named_plainly(self, checkpoint: dict) -> dict:
        """A file whose tensors Detectron2 gives to all names that end as theirs: of a network that has a copy for its
        training, under the names in the network without it. Detectron2 refuses two such names."""
        prefixes = network_of(self._cfg).training_only
        if not (prefixes and checkpoint.get("matching_heuristics")):
            return checkpoint
        plain = for_prediction({"model": self.model.state_dict(), "training_only": prefixes})["model"]
        tensors = align_and_update_state_dicts(
            plain,
            checkpoint["model"],
            c2_conversion=checkpoint.get("__author__") == "Caffe2",
        )
        return {**checkpoint, "model": tensors, "matching_heuristics": False}

    def _check_numbers(self, tensors: dict) -> None:
        """Whole numbers where this model has others would be codes of a quantised network, without their scales."""
        ours = [f".{key}" for key, value in self.model.state_dict().items() if value.is_floating_point()]
        for key, value in tensors.items():
            numbers = require_numbers(f"{self._path}: {key}", value)
            are_codes = not numbers.is_floating_point() and any(place.endswith(f".{key}") for place in ours)
            expect(not are_codes, f"{self._path}: {key} holds {numbers.dtype}: expected weights of floating point")

    def _misfit(self, tensors: dict) -> str:
        """In words, which tensors of a checkpoint are not this model's, or have another shape; "" where all fit."""
        ours = shapes_of(self.model.state_dict())
        theirs = shapes_of(tensors)
        wrong = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        if not wrong:
            return ""
        key = wrong[0]
        shapes = f"{theirs.get(key, 'absent')} there, {ours.get(key, 'absent')} here"
        differs = f"cannot resume: {self._path} differs from this config in {len(wrong)} tensors, the first {key}"
        return f"{differs}: {shapes}. Restore the config of that run, or start again in another OUTPUT_DIR"

    def _check_backbone_is_whole(self, missing_keys: list[str], checkpoint: dict) -> None:
        expected = backbone_keys(self.model)
        missing = [key for key in expected if key in set(missing_keys)]
        loaded = f"{len(expected) - len(missing)} of {len(expected)} backbone tensors"
        logger.info(f"{loaded} loaded from {self._path}")
        if not missing or self._cfg.MODEL.ALLOW_PARTIAL_BACKBONE:
            return
        layout = recognised(checkpoint, {})
        source = f", which has the layout {layout.NAME}" if layout else ""
        raise UserError(
            f"only {loaded} have a value in {self._path}{source}, the first without: {missing[0]}. Convert the weights "
            "with tools/convert_to_d2.py, correct the backbone's keys, or set MODEL.ALLOW_PARTIAL_BACKBONE True"
        )


class WholeModelCheckpointer(RevisitCheckpointer):
    """Refuses to load less than the whole model: what is scored or drawn must have been trained."""

    trains = False

    def load(self, path: str, *args: object, **kwargs: object) -> dict:
        expect(path, "no weights to predict with: give MODEL.WEIGHTS, such as output/x/model_final.pth")
        return super().load(path, *args, **kwargs)


def _is_whole(path: Path) -> bool:
    """Whether a run can resume from a checkpoint; says why not."""
    try:
        problem = "" if is_of_run(read_checkpoint(path)) else f"{path} is no checkpoint of a run"
    except UnreadableCheckpointError as error:
        problem = str(error)
    if problem:
        logger.error(f"DAMAGED CHECKPOINT: {problem}. Trying the one before it")
    return not problem
