"""A folded batch norm with the statistics of images: the same network, which can be trained."""

import numpy as np
import torch
from checkpoints import run_checkpoint

from projects.Weights.recalibration import recalibrate, recalibrated
from revisit.checkpoint.convert import convert
from revisit.checkpoint.flags import flags_to_config
from revisit.network.network import Network

DETECTOR = (
    "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.BACKBONE.NAME", "build_dilated_c5_backbone",
    "MODEL.RPN.IN_FEATURES", ["c5"], "MODEL.ROI_HEADS.IN_FEATURES", ["c5"], "MODEL.ROI_HEADS.NAME", "StandardROIHeads",
    "MODEL.ROI_BOX_HEAD.NAME", "FastRCNNConvFCHead", "MODEL.ROI_BOX_HEAD.NUM_FC", 1, "MODEL.ROI_BOX_HEAD.FC_DIM", 32,
)  # fmt: skip


def is_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).abs().max() <= 1e-4 * expected.abs().max()) and bool(expected.std() > 1e-3)


@torch.no_grad()
def test_recalibrated_weights_compute_the_same_and_their_statistics_are_those_of_the_images():
    content = run_checkpoint(*DETECTOR)
    content.pop("flags")
    weights = convert(content)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 3, 64, 64), dtype=torch.uint8, generator=generator)
    tensors = recalibrated(weights, images.split(2))
    cfg = flags_to_config(weights.flags)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    seen = (images.flip(1).float() - mean) / std  # BGR
    before, after = weights.description.build(cfg).eval(), weights.description.build(cfg).eval()
    before.load_state_dict(weights.tensors, strict=False)
    after.load_state_dict(tensors, strict=False)
    assert is_close(after(seen)["res5"], before(seen)["res5"])
    assert is_close(after.train()(seen)["res5"], before(seen)["res5"])  # the batch has the very statistics
    assert not is_close(before.train()(seen)["res5"], before.eval()(seen)["res5"])


@torch.no_grad()
def test_weights_of_channels_are_recalibrated_on_images_of_these_channels(tmp_path):
    names = ("red", "nir", "swir", "depth", "thermal")
    pixels = ("INPUT.CHANNELS", list(names), "MODEL.PIXEL_MEAN", [90.0] * 5, "MODEL.PIXEL_STD", [50.0] * 5)
    weights = convert(run_checkpoint(*pixels))
    weights = weights._replace(flags={**weights.flags, **weights.description.FOLDED})
    for number in range(4):
        values = np.random.default_rng(number).integers(0, 256, (70, 80, 5)).astype(np.uint8)
        np.save(tmp_path / f"{number}.npy", values)
    (tmp_path / "list.txt").write_text("\n".join(str(tmp_path / f"{number}.npy") for number in range(4)))
    found = recalibrate(weights, f"list:{tmp_path / 'list.txt'}")
    before, after = Network.of(weights), Network.of(found)
    image = torch.randint(0, 256, (1, 5, 224, 224), dtype=torch.uint8)
    assert found.tensors["stem.conv1.norm.running_var"].std() > 0
    assert is_close(after.last_map(image), before.last_map(image))
