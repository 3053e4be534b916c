"""Checkpoints as each project writes them: its key layout around the tensors of one torchvision ResNet."""

from collections.abc import Callable

import torch
import torchvision
from torch import Tensor

Tensors = dict[str, Tensor]

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


def random_resnet(name: str) -> torch.nn.Module:
    """A torchvision ResNet in evaluation mode whose BN layers differ from each other in all four of their vectors."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for values, low, high in (
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.5, 0.5),
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
            ):
                values.uniform_(low, high, generator=generator)
            module.num_batches_tracked += 7
    return model.eval()


def backbone_of(model: torch.nn.Module, shrink: int = 1) -> Tensors:
    """A ResNet's tensors without its classifier's, of ``1 / shrink`` of its width."""
    tensors = {key: value for key, value in model.state_dict().items() if not key.startswith("fc.")}
    for key, value in tensors.items():
        for dim in range(min(2, value.dim())):
            if value.shape[dim] > 3:
                tensors[key] = tensors[key].narrow(dim, 0, value.shape[dim] // shrink).clone()
    return tensors


def maps_of(resnet: torch.nn.Module, images: Tensor) -> Tensor:
    """The last map of a torchvision ResNet."""
    x = resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1(images))))
    return resnet.layer4(resnet.layer3(resnet.layer2(resnet.layer1(x))))


def under(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}{key}": value for key, value in tensors.items()}


def noise(*names: str) -> Tensors:
    return {name: torch.ones(2) for name in names}


def moco(backbone: Tensors, *heads: str) -> dict:
    heads = heads or ("fc.0.weight", "fc.2.bias")
    both = [under(f"module.encoder_{name}.", {**backbone, **noise(*heads)}) for name in ("q", "k")]
    tensors = {**both[0], **both[1], **noise("module.queue", "module.queue_ptr")}
    optimizer = {"state": {0: {"momentum_buffer": torch.ones(2)}}, "param_groups": []}
    return {"epoch": 200, "arch": "resnet50", "state_dict": tensors, "optimizer": optimizer}


def moco_v1(backbone: Tensors) -> dict:
    return moco(backbone, "fc.weight", "fc.bias")


def reference(backbone: Tensors) -> dict:
    checkpoint = moco(backbone)
    checkpoint["state_dict"] |= noise("module.queue_backbone")
    return checkpoint


def densecl_raw(backbone: Tensors) -> dict:
    encoders = {**under("encoder_q.0.", backbone), **under("encoder_k.0.", backbone)}
    heads = noise("encoder_q.1.mlp.0.weight", "encoder_k.1.mlp2.2.bias", "neck.mlp.0.weight", "necks.0.weight")
    queues = noise("queue", "queue_ptr", "queue2", "queue2_ptr")
    return {"meta": {"epoch": 200}, "state_dict": {**queues, **encoders, **heads, **under("backbone.", backbone)}}


def densecl_released(backbone: Tensors) -> dict:
    return {"state_dict": dict(backbone), "author": "someone"}


def swav(backbone: Tensors) -> dict:
    heads = noise("projection_head.0.weight", "projection_head.1.running_mean", "prototypes.weight")
    return under("module.", {**backbone, **heads})


def swav_training(backbone: Tensors) -> dict:
    return {"epoch": 800, "state_dict": {**swav(backbone), **noise("module.prototypes.prototypes0.weight")}}


def virtex_model(backbone: Tensors) -> dict:
    heads = noise("textual.embedding.words.weight", "textual.output.bias", "backward_textual.output.bias")
    return {"model": {**under("visual.cnn.", backbone), **heads}, "iteration": 500_000}


def bare(backbone: Tensors) -> dict:
    return dict(backbone)


def classifier(backbone: Tensors) -> dict:
    return {**backbone, **noise("fc.weight", "fc.bias")}


# name: (source, what --source auto calls it, the checkpoint of a backbone)
LAYOUTS: dict[str, tuple[str, str, Callable[[Tensors], dict]]] = {
    "MoCo v1": ("moco", "moco", moco_v1),
    "MoCo v2": ("moco", "moco", moco),
    "reference code": ("reference", "reference", reference),
    "reference code without neighbours": ("reference", "moco", moco),
    "DenseCL raw": ("densecl", "densecl", densecl_raw),
    "DenseCL released": ("densecl", "torchvision", densecl_released),
    "SwAV released": ("swav", "swav", swav),
    "SwAV training": ("swav", "swav", swav_training),
    "VirTex model": ("virtex", "virtex", virtex_model),
    "VirTex hub": ("virtex", "torchvision", bare),
    "torchvision": ("torchvision", "torchvision", classifier),
    "timm": ("timm", "torchvision", classifier),
}
