"""Checkpoints of one ResNet: as each project writes them, as a run does, and as the converter leaves them."""

from pathlib import Path

import torch
import torchvision
from tiny import tiny_config, tiny_model
from torch import Tensor

from projects.ToyScenes import CLASS_NAMES
from revisit.checkpoint.backbone_file import write_tensors
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.convert import convert
from revisit.checkpoint.detector_parts import part_flags
from revisit.checkpoint.flags import flags_of, write_flags
from revisit.engine.same_experiment import plain_config
from revisit.engine.setup import make_config
from revisit.modeling.backbone.description import describe

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.modeling import build_model

Tensors = dict[str, Tensor]
NARROW = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.DEVICE cpu"

RESNET18_FLAGS = {
    "MODEL.RESNETS.DEPTH": 18,
    "MODEL.RESNETS.STEM_TYPE": "basic",
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 64,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 64,
    "MODEL.RESNETS.NUM_GROUPS": 1,
    "MODEL.RESNETS.WIDTH_PER_GROUP": 64,
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.PIXEL_MEAN": [123.675, 116.28, 103.53],
    "MODEL.PIXEL_STD": [58.395, 57.12, 57.375],
    "INPUT.FORMAT": "RGB",
}


def random_resnet(name: str, **options: object) -> torch.nn.Module:
    """A torchvision ResNet in evaluation mode whose BN layers differ from each other in all four of their vectors."""
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(**options)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for values, low, high in (
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.5, 0.5),
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
            ):
                values.uniform_(low, high)
            module.num_batches_tracked += 7
    return model.eval()


def maps_of(resnet: torch.nn.Module, images: Tensor) -> Tensor:
    """The last map of a torchvision ResNet."""
    x = resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1(images))))
    return resnet.layer4(resnet.layer3(resnet.layer2(resnet.layer1(x))))


def backbone_of(model: torch.nn.Module, shrink: int = 1) -> Tensors:
    """A ResNet's tensors without its classifier's, of ``1 / shrink`` of its width."""
    tensors = {key: value for key, value in model.state_dict().items() if not key.startswith("fc.")}
    for key, value in tensors.items():
        for dim in range(min(2, value.dim())):
            if value.shape[dim] > 3:
                tensors[key] = tensors[key].narrow(dim, 0, value.shape[dim] // shrink).clone()
    return tensors


def under(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}{key}": value for key, value in tensors.items()}


def noise(*names: str) -> Tensors:
    return {name: torch.ones(2) for name in names}


def moco(backbone: Tensors, *heads: str) -> dict:
    """A checkpoint of MoCo v2, or of another version by its heads."""
    encoder = {**backbone, **noise(*heads or ("fc.0.weight", "fc.2.bias"))}
    tensors = {**under("module.encoder_q.", encoder), **under("module.encoder_k.", encoder)}
    optimizer = {"state": {0: {"momentum_buffer": torch.ones(2)}}, "param_groups": []}
    state = {**tensors, **noise("module.queue", "module.queue_ptr")}
    return {"epoch": 200, "arch": "resnet50", "state_dict": state, "optimizer": optimizer}


def layouts(backbone: Tensors) -> dict[str, tuple[str, str, dict]]:
    """By name: the source, what --source auto calls it, and its checkpoint of the backbone."""
    reference = moco(backbone)
    reference["state_dict"] |= noise("module.queue_backbone")
    densecl = noise("queue", "queue_ptr", "queue2", "queue2_ptr")
    densecl |= {**under("encoder_q.0.", backbone), **under("encoder_k.0.", backbone)}
    densecl |= noise("encoder_q.1.mlp.0.weight", "encoder_k.1.mlp2.2.bias", "neck.mlp.0.weight", "necks.0.weight")
    densecl |= under("backbone.", backbone)
    swav_heads = noise("projection_head.0.weight", "projection_head.1.running_mean", "prototypes.weight")
    swav = under("module.", {**backbone, **swav_heads})
    virtex = under("visual.cnn.", backbone)
    virtex |= noise("textual.embedding.words.weight", "textual.output.bias", "backward_textual.output.bias")
    classifier = {**backbone, **noise("fc.weight", "fc.bias")}
    joint = under("module.backbone.", backbone)
    with_fc = {**backbone, **noise("fc.0.weight", "fc.6.running_mean")}
    moco_v3 = {**under("module.base_encoder.", with_fc), **under("module.momentum_encoder.", with_fc)}
    simsiam = {**under("module.encoder.", with_fc), **noise("module.predictor.0.weight")}
    trunk = {"trunk": under("_feature_blocks.", backbone), "heads": noise("0.clf.0.weight")}
    lightning = {**under("model._orig_mod.", classifier), **noise("criterion.weight")}
    online = {**under("net.online_encoder.", with_fc), **under("net.target_encoder.", with_fc)}
    average = under("module.", classifier) | noise("n_averaged")
    dino = joint | noise("module.head.mlp.0.weight", "module.head.last_layer.weight_g")
    vicreg = joint | noise("module.projector.0.weight", "module.projector.1.running_var")
    return {
        "DINO released": ("dino", "torchvision", dict(backbone)),
        "DINO training": ("dino", "dino", {"student": noise("module.head.x"), "teacher": dino, "epoch": 800}),
        "DINO training of a ViT": (
            "dino",
            "dino",
            {"student": dino, "teacher": under("", {k.removeprefix("module."): v for k, v in dino.items()})},
        ),
        "VICReg released": ("vicreg", "torchvision", dict(backbone)),
        "VICReg training": ("vicreg", "other", {"epoch": 1000, "model": vicreg}),
        "Barlow Twins released": ("barlow_twins", "torchvision", dict(backbone)),
        "Barlow Twins training": (
            "barlow_twins",
            "barlow_twins",
            {"epoch": 1000, "model": vicreg | noise("module.bn.running_mean")},
        ),
        "MoCo v1": ("moco", "moco", moco(backbone, "fc.weight", "fc.bias")),
        "MoCo v2": ("moco", "moco", moco(backbone)),
        "reference code": ("reference", "reference", reference),
        "reference code without neighbours": ("reference", "moco", moco(backbone)),
        "DenseCL raw": ("densecl", "densecl", {"meta": {"epoch": 200}, "state_dict": densecl}),
        "DenseCL released": ("densecl", "torchvision", {"state_dict": dict(backbone), "author": "someone"}),
        "SwAV released": ("swav", "swav", swav),
        "SwAV training": ("swav", "swav", {"state_dict": swav | noise("module.prototypes.prototypes0.weight")}),
        "VirTex model": ("virtex", "virtex", {"model": virtex, "iteration": 500_000}),
        "VirTex hub": ("virtex", "torchvision", dict(backbone)),
        "torchvision": ("torchvision", "torchvision", classifier),
        "timm": ("timm", "torchvision", classifier),
        "MoCo without DDP": (
            "moco",
            "moco",
            {k.removeprefix("module."): v for k, v in moco(backbone)["state_dict"].items()},
        ),
        "MoCo v3": ("moco_v3", "moco_v3", {"state_dict": moco_v3 | noise("module.predictor.0.weight")}),
        "SimSiam": ("simsiam", "simsiam", {"epoch": 100, "state_dict": simsiam}),
        "VISSL": ("vissl", "vissl", {"classy_state_dict": {"base_model": {"model": trunk}, "optimizer": {}}}),
        "OpenMMLab": (
            "other",
            "other",
            {"meta": {}, "state_dict": under("backbone.", backbone) | noise("head.fc.bias")},
        ),
        "Lightning, compiled": ("other", "other", {"epoch": 3, "state_dict": lightning}),
        "BYOL in a model": ("other", "other", {"state_dict": online}),
        "average of weights": ("torchvision", "torchvision", average),
    }


def run_checkpoint(*options: object, **beside: object) -> dict:
    """Of a run of ``tiny_config``, before its first step."""
    model, cfg = tiny_model(*options), tiny_config(*options)
    flags = flags_of(cfg, describe(model)) | part_flags(model.state_dict(), cfg)
    return {"model": model.state_dict(), "flags": flags, **beside}


def write_converted(checkpoint: dict, path: Path) -> Path:
    """What tools/convert_to_d2.py writes."""
    converted = convert(checkpoint)
    write_tensors(converted.tensors | converted.parts, path, __author__="test", matching_heuristics=True)
    write_flags(path, converted.flags, source="moco: moco.pth.tar, epoch 200")
    return path


def finetuned_checkpoint(recipe: str, folder: Path) -> Path:
    """Of a toy recipe's network with random weights, whose scores are all near a tenth."""
    cfg = make_config(f"configs/toy/{recipe}.yaml", f"{NARROW} OUTPUT_DIR {folder}".split())
    if recipe.endswith("fpn"):
        MetadataCatalog.get(cfg.DATASETS.TRAIN[0]).thing_classes = list(CLASS_NAMES)  # as reading the data set says
    torch.manual_seed(0)
    RevisitCheckpointer(build_model(cfg), cfg).save("model_final", iteration=9, trainer={"config": plain_config(cfg)})
    return folder / "model_final.pth"


def load_into(cfg: CfgNode, weights: Path) -> torch.nn.Module:
    """The model of a config that starts from the weights, in evaluation mode."""
    torch.manual_seed(1)
    model = build_model(cfg).eval()
    RevisitCheckpointer(model, cfg).resume_or_load(str(weights), resume=False)
    return model


# By efficientnet_pytorch's names in a block, timm's in the first one, which expands nothing, and in the others.
EFFICIENTNET = {
    "_expand_conv": ("", "conv_pw"),
    "_bn0": ("", "bn1"),
    "_depthwise_conv": ("conv_dw", "conv_dw"),
    "_bn1": ("bn1", "bn2"),
    "_project_conv": ("conv_pw", "conv_pwl"),
    "_bn2": ("bn2", "bn3"),
}
AROUND = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}


def efficientnet_names(tensors: Tensors) -> Tensors:
    """timm's tensors of tf_efficientnet_lite0, whose stages have 1, 2, 2, 3, 3, 4 and 1 blocks, as lukemelas' code
    names them."""
    modules = {theirs: ours for ours, theirs in AROUND.items()}
    blocks = [(stage, block) for stage, count in enumerate((1, 2, 2, 3, 3, 4, 1)) for block in range(count)]
    for number, (stage, block) in enumerate(blocks):
        for ours, names in EFFICIENTNET.items():
            modules[f"blocks.{stage}.{block}.{names[number > 0]}"] = f"_blocks.{number}.{ours}"
    return {f"{modules[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": value for key, value in tensors.items()}
