"""One pretraining by a peer, in the peers' environment: NAME IMAGES FOLDER ITERATIONS writes FOLDER/weights.pth."""

import copy
import math
import shutil
import sys
from itertools import chain, islice, repeat
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torchvision.models import ResNet, resnet18
from torchvision.models.resnet import BasicBlock


def narrow_resnet18() -> ResNet:
    """torchvision's ResNet-18 with half its channels, as in configs/own_images/, drawn as torchvision draws its own."""
    network = resnet18()
    network.conv1, network.bn1 = nn.Conv2d(3, 32, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(32)
    network.fc = nn.Linear(256, 1000)
    inputs = 32
    for stage, (width, stride) in enumerate(((32, 1), (64, 2), (128, 2), (256, 2)), start=1):
        setattr(network, f"layer{stage}", _stage(inputs, width, stride))
        inputs = width
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _stage(inputs: int, width: int, stride: int) -> nn.Sequential:
    """Two of torchvision's basic blocks."""
    shortcut = None
    if stride != 1 or inputs != width:
        shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))
    return nn.Sequential(BasicBlock(inputs, width, stride, shortcut), BasicBlock(width, width))


class _Settings(NamedTuple):
    """Of a training with lightly."""

    batch: int
    rate: float
    decay: float
    warm_up: int  # iterations
    memory_format: torch.memory_format


TUTORIALS = _Settings(256, 0.06, 5e-4, 0, torch.contiguous_format)
REVISITS = _Settings(64, 0.015, 1e-4, 50, torch.channels_last)
LOOKS = {"simclr": {"vf_prob": 0.5, "rr_prob": 0.5}, "moco": {"gaussian_blur": 0}}  # of the tutorials
REVISITS_LOOK = {
    "min_scale": 0.4,
    "gaussian_blur": 0,
    "cj_bright": 0.4,
    "cj_contrast": 0.4,
    "cj_sat": 0.4,
    "cj_hue": 0.1,
}


def lightly(method: str, ours: bool, images: Path, folder: Path, iterations: int) -> None:
    """Its components with the settings of its tutorials 2 and 3, at 64 px; ``ours``: with Revisit's."""
    from lightly.data import LightlyDataset
    from lightly.loss import NTXentLoss
    from lightly.models.modules import MoCoProjectionHead, SimCLRProjectionHead
    from lightly.models.utils import update_momentum
    from lightly.transforms import MoCoV2Transform, SimCLRTransform
    from lightly.utils.scheduler import CosineWarmupScheduler

    settings, look = (REVISITS, REVISITS_LOOK) if ours else (TUTORIALS, LOOKS[method])
    views = {"simclr": SimCLRTransform, "moco": MoCoV2Transform}[method](64, **look)
    data = LightlyDataset(str(images), transform=views)
    loader = torch.utils.data.DataLoader(data, settings.batch, shuffle=True, drop_last=True)
    network = narrow_resnet18().to(memory_format=settings.memory_format)
    body = list(network.children())[:-1]
    head = {"simclr": SimCLRProjectionHead, "moco": MoCoProjectionHead}[method](256, 256, 128)
    student = nn.Sequential(*body, nn.Flatten(), head)
    if method == "moco":
        teacher, criterion = copy.deepcopy(student).requires_grad_(False), NTXentLoss(0.1, (4096, 128))
    else:
        teacher, criterion = student, NTXentLoss(0.1 if ours else 0.5, 0)
    optimiser = torch.optim.SGD(student.parameters(), settings.rate, momentum=0.9, weight_decay=settings.decay)
    warm_up = min(settings.warm_up, iterations // 2)
    schedule = CosineWarmupScheduler(optimiser, warmup_epochs=warm_up, max_epochs=iterations)
    batches = islice(chain.from_iterable(repeat(loader)), iterations)
    for (one, other), *_ in batches:
        if method == "moco":
            update_momentum(student, teacher, m=0.99)
        with torch.autocast("cpu", torch.bfloat16, enabled=ours):
            rows, partners = student(one), teacher(other)
        criterion(rows.float(), partners.float()).backward()
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
    torch.save(network.state_dict(), folder / "weights.pth")


def lightly_train(method: str, ours: bool, images: Path, folder: Path, iterations: int) -> None:
    """Its Python function with its defaults, at 64 px; ``ours``: Revisit's settings."""
    import lightly_train

    views, settings = {"image_size": (64, 64)}, {"batch_size": 128}
    if ours:
        look = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
        views |= {"random_resize": {"min_scale": 0.4}, "color_jitter": look, "gaussian_blur": None}
        rate = 0.015 * 256 / 64  # it divides by 256 and multiplies by the batch
        settings = {"batch_size": 64, "precision": "bf16-mixed", "optim": "sgd", "optim_args": {"lr": rate}}
    epochs = math.ceil(iterations * settings["batch_size"] / sum(path.is_file() for path in images.rglob("*")))
    settings |= {"epochs": epochs, "trainer_args": {"max_steps": iterations}, "transform_args": views, "seed": 1}
    settings |= {"num_workers": 0, "accelerator": "cpu", "devices": 1, "overwrite": True}
    lightly_train.pretrain(out=folder, data=images, model=narrow_resnet18(), method=method, **settings)
    shutil.copy(folder / "exported_models" / "exported_last.pt", folder / "weights.pth")


if __name__ == "__main__":
    torch.manual_seed(1)
    peer, method, *ours = sys.argv[1].split("-")
    Path(sys.argv[3]).mkdir(parents=True, exist_ok=True)
    {"lightly": lightly, "lightly_train": lightly_train}[peer](
        method, bool(ours), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    )
