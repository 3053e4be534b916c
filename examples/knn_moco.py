"""kNN-MoCo on one screen: learn a backbone from a folder of images without labels, and write it for finetuning.

    python examples/knn_moco.py folder:/data/photos output/backbone.pth

To read and to change: one process, float32, batch statistics over a whole pass. docs/method.md explains each step. The
same method with evaluations, resuming and many GPUs is configs/own_images/knn_moco.yaml, whose numbers these are.
"""

import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from revisit.checkpoint.backbone_file import write_backbone
from revisit.checkpoint.convert import BackboneWeights
from revisit.checkpoint.flags import IMAGENET, flags_of, flags_to_config
from revisit.data.crops import ConstrainedMultiCrop
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.loading.loader import ViewDataset
from revisit.data.loading.sampler import EpochBatchSampler
from revisit.data.sources.catalog import get_records
from revisit.data.views.looks import draw_autoaugment, draw_either, draw_standard
from revisit.data.views.mapper import ViewMapper
from revisit.data.views.resampling import crop_and_reduce
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder
from revisit.modeling.backbone.resnet import ResNetDescription
from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.momentum import ema_update, momentum_copy
from revisit.modeling.projection_head import ProjectionHead
from revisit.modeling.queue import AlignedQueue

RESNETS = {"DEPTH": 18, "STEM_OUT_CHANNELS": 32, "RES2_OUT_CHANNELS": 32, "STRIDE_IN_1X1": False}
CROPS = ConstrainedMultiCrop(large_scale=(0.4, 1.0), small_scale=(0.15, 0.4), num_small=2, min_overlap=0.2)
SIZES = (64, 40)  # px, of large and small views
BATCH, EPOCHS, SEED, RATE, WARM_UP = 64, 280, 0, 0.015, 200  # WARM_UP in iterations, while random rows fill the queue
QUEUE, DIM, TEMPERATURE, MOMENTUM = 1536, 128, 0.1, 0.99  # K, half the images; C; tau; m
NEIGHBORS, WEIGHT, WAIT = 15, 0.4, 10  # k; lambda; epochs before L_nn joins


class KNNMoCo(nn.Module):
    def __init__(self, backbone: nn.Module):
        super().__init__()
        channels = backbone.output_shape()["res5"].channels
        self.backbone, self.projection_head = backbone, ProjectionHead(channels, DIM)  # g, h
        self.momentum_backbone = momentum_copy(self.backbone)  # g'
        self.momentum_projection_head = momentum_copy(self.projection_head)  # h'
        self.queue = AlignedQueue(QUEUE, keys=DIM, features=channels)  # Q_h and Q_g, whose rows n are of one image

    def forward(self, batch: dict[str, Tensor], num_neighbors: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The losses on the queues as they are before this step, and the keys that enter them after it."""
        large, large_g = rows_of(batch["positive"][:, None], self.backbone, self.projection_head)
        small, small_g = rows_of(batch["small"], self.backbone, self.projection_head)  # apart: statistics of its own
        p, p_g = torch.cat([large, small], dim=1), torch.cat([large_g, small_g], dim=1)
        with torch.no_grad():
            a, a_g = rows_of(batch["anchor"], self.momentum_backbone, self.momentum_projection_head)
        options = {"temperature": TEMPERATURE, "num_neighbors": num_neighbors}
        losses = contrastive_losses(p, a, self.queue.keys, p_g, self.queue.features, **options)
        return losses, {"keys": a, "features": a_g}


def rows_of(views: Tensor, backbone: nn.Module, head: nn.Module) -> tuple[Tensor, Tensor]:
    """Unit rows after the head (..., C) and before it (..., Cg) of views (..., 3, H, W) uint8 RGB."""
    mean, std = (views.new_tensor(IMAGENET[f"MODEL.PIXEL_{name}"], dtype=torch.float32) for name in ("MEAN", "STD"))
    images = (views.flatten(0, -4) - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    g = backbone(images)["res5"].mean(dim=(2, 3))
    return tuple(normalize(rows, dim=1).unflatten(0, views.shape[:-3]) for rows in (head(g), g))


def views_of(images: str) -> DataLoader:
    """Endless batches of uint8 views: anchor and positive (B, 3, H, W), small (B, N, 3, h, w)."""
    standard = partial(draw_standard, grey=0.2, blur=0.0)
    a_plus = partial(draw_either, first=standard, second=draw_autoaugment)
    mapper = ViewMapper(CROPS, *SIZES, SEED, standard, a_plus, crop_and_reduce)
    dataset = ViewDataset(get_records(images), mapper, PHOTOGRAPHS)
    return DataLoader(dataset, batch_sampler=EpochBatchSampler(len(dataset), BATCH, SEED), collate_fn=dict)


def train(model: KNNMoCo, loader: DataLoader) -> Iterator[dict[str, Tensor]]:
    """Yields the losses of each iteration; L_nn is not weighted by lambda."""
    per_epoch = loader.batch_sampler.iterations_per_epoch
    length = EPOCHS * per_epoch
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=1e-4)  # g' and h' have no gradient
    schedule = LambdaLR(optimizer, lambda n: min(1, (n + 1) / WARM_UP) * (1 + math.cos(math.pi * n / length)) / 2)
    for iteration, batch in zip(range(length), loader, strict=False):
        views = {name: batch[name].to(model.queue.keys.device) for name in ("anchor", "positive", "small")}
        losses, keys = model(views, NEIGHBORS if iteration >= WAIT * per_epoch else 0)
        optimizer.zero_grad()
        (losses["loss_inst"] + WEIGHT * losses.get("loss_nn", 0)).backward()
        optimizer.step()
        schedule.step()
        ema_update(model.momentum_backbone, model.backbone, MOMENTUM)  # after the optimiser's step
        ema_update(model.momentum_projection_head, model.projection_head, MOMENTUM)
        model.queue.enqueue(**keys)  # and last the queues
        yield losses


def main(images: str = "", output: str = "") -> None:
    expect(output, "expected IMAGES OUTPUT, such as folder:/data/photos output/backbone.pth")
    make_folder(Path(output).parent, "OUTPUT")
    torch.manual_seed(SEED)
    network = ResNetDescription()
    cfg = flags_to_config(IMAGENET | {f"MODEL.RESNETS.{key}": value for key, value in RESNETS.items()})
    model = KNNMoCo(network.build(cfg)).to("cuda" if torch.cuda.is_available() else "cpu")
    for iteration, losses in enumerate(train(model, views_of(images))):
        print(iteration, *(f"{name} {loss.item():.4f}" for name, loss in losses.items()), flush=True)
    tensors = model.backbone.cpu().state_dict()
    write_backbone(BackboneWeights(tensors, flags_of(cfg, network), network, "revisit: one screen"), Path(output))


if __name__ == "__main__":
    run_command(partial(main, *sys.argv[1:]))
