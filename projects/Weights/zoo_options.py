"""What a recipe has to be told of a detector of Detectron2's zoo, whose file says little about itself."""

from pathlib import Path

from projects.Weights.detectron2_layout import author_of, backbone_in_detectron2, zoo_flags
from revisit.checkpoint.flags import is_folded
from revisit.checkpoint.reading import read_checkpoint, tensors_of
from revisit.keys import value_of

from detectron2.config import CfgNode

# Flags of a zoo's detector that say how its pixels and strides are; the others are the network, which a recipe states.
ZOO_KEYS = ("INPUT.FORMAT", "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD", "MODEL.RESNETS.STRIDE_IN_1X1", "MODEL.RESNETS.NORM")


def zoo_options(file: Path, cfg: CfgNode) -> tuple[str, ...]:
    """KEY VALUE pairs under which a detector of Detectron2's zoo computes what it was trained to, as far as a recipe
    says otherwise: no file of the zoo says so itself. () where batch norm has statistics, so that nobody knows them."""
    content = read_checkpoint(file)
    author = author_of(content)
    placed = backbone_in_detectron2(tensors_of(content), author)
    if not (placed and is_folded(placed[0])):
        return ()
    tensors, description = placed
    flags = {**description.FOLDED, **zoo_flags(tensors, description, author)}
    other = {key: flags[key] for key in ZOO_KEYS if key in flags and value_of(cfg, key) != flags[key]}
    return tuple(word for key, value in other.items() for word in (key, str(value)))
