"""A linear layer trained by SGD on random crops, through the frozen network (MoCo's protocol)."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import MultiStepLR

from projects.Pictures.curves import saved_plot
from revisit.data.randomness import Stream, counter_rng
from revisit.data.views.boxes import random_resized_crop
from revisit.data.views.resampling import crop_and_resize
from revisit.evaluation.features import center_crop
from revisit.files import written_whole
from revisit.network.network import Network
from revisit.progress import progress

from detectron2.config import CfgNode

from .labelled_sets import LabelledSet, image_loader, images_key, labels_key

logger = logging.getLogger(__name__)


class LinearTraining:
    """Trains and scores the layer; its state is kept in FOLDER/sgd.pth after every epoch."""

    def __init__(self, cfg: CfgNode, backbone: Network, train: LabelledSet, test: LabelledSet):
        self._cfg = cfg
        self._backbone = backbone
        self._train = train
        self._test = test
        self._labels = [labels_key(data.targets) for data in (train, test)]
        self._frozen = backbone.digest(pixels=True)
        self.layer = nn.Linear(backbone.shape.channels, int(train.targets.max()) + 1).to(cfg.MODEL.DEVICE)
        generator = torch.Generator().manual_seed(cfg.SEED)
        drawn = torch.randn(self.layer.weight.shape, generator=generator)
        with torch.no_grad():
            self.layer.weight.copy_(drawn * 0.01)
            self.layer.bias.zero_()
        options = cfg.SOLVER
        self._optimizer = torch.optim.SGD(
            self.layer.parameters(), options.BASE_LR, options.MOMENTUM, weight_decay=options.WEIGHT_DECAY
        )
        self._schedule = MultiStepLR(self._optimizer, list(options.STEP_EPOCHS), gamma=options.GAMMA)
        self._parts = {"layer": self.layer, "optimizer": self._optimizer, "schedule": self._schedule}
        self.history: list[dict] = []  # of each epoch: loss, top1, top5

    def run(self, folder: Path) -> list[dict]:
        """Train the remaining epochs; the history of all."""
        state_file = folder / "sgd.pth"
        self._resume(state_file)
        for epoch in range(len(self.history), self._cfg.SOLVER.EPOCHS):
            loss = self._train_epoch(epoch)
            if self._backbone.digest(pixels=True) != self._frozen:
                raise RuntimeError("the frozen backbone has changed in an epoch of its classifier")
            self.history.append({"loss": round(loss, 4), **self.evaluate()})
            logger.info(f"epoch {epoch + 1} of {self._cfg.SOLVER.EPOCHS}: {json.dumps(self.history[-1])}")
            content = {name: part.state_dict() for name, part in self._parts.items()}
            with written_whole(state_file) as temporary, open(temporary, "wb") as file:
                torch.save({**content, "history": self.history, "recipe": self._recipe(), "labels": self._labels}, file)
        return self.history

    def _train_epoch(self, epoch: int) -> float:
        seed = self._cfg.SEED
        size = self._cfg.LINEAR.IMAGE_SIZE
        order = counter_rng(seed, Stream.SHUFFLE, epoch).permutation(len(self._train.records)).tolist()

        def random_crop(image: np.ndarray, index: int) -> np.ndarray:
            return random_view(image, size, counter_rng(seed, Stream.VIEWS, epoch, index))

        total = 0.0
        for logits, labels in self._outputs(self._train, random_crop, f"epoch {epoch + 1}", order):
            loss = F.cross_entropy(logits, labels)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            total += loss.item() * len(labels)
        self._schedule.step()
        return total / len(order)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Percent: ``top1`` and ``top5`` of the test images."""
        size = self._cfg.LINEAR.IMAGE_SIZE
        hits = torch.zeros(2)
        for logits, labels in self._outputs(self._test, lambda image, _: center_crop(image, size), "test images"):
            best = logits.topk(min(5, logits.shape[1]), dim=1).indices
            is_right = best == labels[:, None]
            first = is_right[:, 0].sum()
            any_of_five = is_right.any(dim=1).sum()
            hits += torch.stack([first, any_of_five]).cpu()
        total = len(self._test.records)
        top1, top5 = (round(100 * float(count) / total, 2) for count in hits)
        return {"top1": top1, "top5": top5}

    def _outputs(
        self, data: LabelledSet, view: Callable[..., np.ndarray], name: str, order: list[int] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits (B, classes) and labels (B,) of each batch."""
        loader = image_loader(self._cfg, data.records, view, sampler=order, batch_size=self._cfg.SOLVER.IMS_PER_BATCH)
        for batch, indices in progress(name, "batch", loader):
            labels = torch.from_numpy(data.targets)[indices].to(self._cfg.MODEL.DEVICE)
            yield self.layer(self._backbone.pooled(batch)), labels

    def _resume(self, path: Path) -> None:
        if not path.is_file():
            return
        saved = torch.load(path, map_location="cpu", weights_only=True)
        same_labels = saved.get("labels", self._labels) == self._labels  # earlier versions saved none
        if saved["recipe"] != self._recipe() or not same_labels:
            logger.info(f"{path} was trained with other weights, data or settings: starting again")
            return
        for name, part in self._parts.items():
            part.load_state_dict(saved[name])
        self.history = saved["history"]
        logger.info(f"resuming after epoch {len(self.history)} of {path}")

    def _recipe(self) -> str:
        """Everything that the result depends on, as text, but for the labels."""
        kept = self._cfg.clone()
        kept.defrost()
        kept.OUTPUT_DIR = ""
        kept.DATALOADER.NUM_WORKERS = 0
        return (
            f"{kept.dump()}\nweights {self._frozen}\n"
            f"images {images_key(self._train.records)} {images_key(self._test.records)}"
        )


def random_view(image: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """A random crop of an (H, W, C) uint8 image, (size, size, C), flipped every other time."""
    box = random_resized_crop(*image.shape[:2], (0.08, 1.0), rng)
    view = crop_and_resize(image, box, size)
    # OpenCV flips up to 128 channels.
    return np.ascontiguousarray(view[:, ::-1]) if rng.random() < 0.5 else view


def plot_history(history: list[dict], output: Path) -> None:
    """Loss and accuracies by epoch."""
    epochs = range(1, len(history) + 1)
    with saved_plot(output, 2) as (losses, accuracies):
        losses.plot(epochs, [row["loss"] for row in history])
        for name in ("top1", "top5"):
            accuracies.plot(epochs, [row[name] for row in history], label=name)
        losses.set(xlabel="epoch", ylabel="loss on random crops")
        accuracies.set(xlabel="epoch", ylabel="correct test images (%)")
