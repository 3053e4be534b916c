"""What torchvision and timm have of Detectron2's ResNets: their names of its tensors, and how they build it."""

from collections.abc import Mapping
from functools import cache
from itertools import product

from revisit.errors import expect
from revisit.modeling.backbone.description import BackboneDescription, Card, Flags, families
from revisit.modeling.backbone.resnet import BASIC_DEPTHS, BLOCKS_PER_STAGE, ResNetDescription

_TORCHVISION = """\
In torchvision, where the untrained classifier is all that may be missing:

```python
import torch
import torchvision
{import_more}
model = torchvision.models.resnet{depth}({torchvision_options})
keys = model.load_state_dict({load}, strict=False)
assert keys.missing_keys == ["fc.weight", "fc.bias"] and not keys.unexpected_keys
model.fc = torch.nn.Identity()  # or a Linear({features}, classes) to train
normalize = torchvision.transforms.Normalize({mean_list}, {std_list})
features = model.eval()(normalize(torch.rand(1, 3, 224, 224)))
assert features.shape == (1, {features})
```
"""
_TIMM = """\
In timm:

```python
import timm
import torch
{import_more}
model = timm.create_model("resnet{depth}", num_classes=0{timm_options})
model.load_state_dict({load})
mean, std = torch.tensor({mean_list}).view(-1, 1, 1), torch.tensor({std_list}).view(-1, 1, 1)
features = model.eval()((torch.rand(1, {inputs}, 224, 224) - mean) / std)
assert features.shape == (1, {features})
```
"""
_STEM_OF_TORCHVISION = "a 7x7 convolution of stride 2 that pads by 3 on each side, then 3x3 max pooling"


class LibraryResNet(ResNetDescription):
    """With the names of torchvision's ResNet, which are timm's too."""

    def assumed(self, flags: Flags) -> str:
        is_cifar = flags["MODEL.RESNETS.STEM_TYPE"] == "cifar"
        pads = "a 3x3 convolution of stride 1 that pads by 1, no pooling" if is_cifar else _STEM_OF_TORCHVISION
        return f"its stem is {pads}; strides are in the 3x3 convolutions, activations are ReLU"

    def library_names(self, stated: Flags) -> Mapping[str, str]:
        return {} if stated.get("MODEL.TIMM.NAME") else _library_names()

    def card(self, flags: Flags) -> Card:
        depth = flags["MODEL.RESNETS.DEPTH"]
        groups = flags["MODEL.RESNETS.NUM_GROUPS"]
        width = flags["MODEL.RESNETS.WIDTH_PER_GROUP"]
        is_basic = depth in BASIC_DEPTHS
        features = 512 if is_basic else 2048
        theirs = {"STEM_TYPE": "basic", "STEM_OUT_CHANNELS": 64, "RES2_OUT_CHANNELS": features // 8}
        if not is_basic:  # basic blocks have no 1x1
            theirs["STRIDE_IN_1X1"] = False
        self._require_same(flags, theirs)
        title = self.title(flags)
        facts = {"depth": depth, "features": features, "torchvision_options": "", "timm_options": ""}
        if not is_basic and (groups, width) != (1, 64):
            title = f"{title} of {groups} groups of width {width}"
            facts["torchvision_options"] = f"groups={groups}, width_per_group={width}"
            facts["timm_options"] = f", cardinality={groups}, base_width={width}"
        snippets = {"torchvision": _TORCHVISION, "timm": _TIMM}
        if (inputs := len(flags["MODEL.PIXEL_MEAN"])) != 3:
            del snippets["torchvision"]
            facts["timm_options"] += f", in_chans={inputs}"
        strides = "" if is_basic else "; strides in the 3x3 convolutions"
        return Card(
            f"{title}, stem of one 7x7 convolution and pooling{strides}",
            f"no classifier\n(`fc`). An image becomes {features} numbers, the mean of the last map of stride 32.",
            facts,
            snippets,
        )

    def _require_same(self, flags: Flags, theirs: Flags) -> None:
        """Raise UserError where a value of MODEL.RESNETS is not the libraries'."""
        for name, value in theirs.items():
            own = flags[f"MODEL.RESNETS.{name}"]
            cannot = (
                f"in the backbone and {value} in torchvision's and timm's {self.title(flags)}, which cannot hold it"
            )
            expect(own == value, f"MODEL.RESNETS.{name} is {own} {cannot}: use it in Detectron2")


def in_libraries(description: BackboneDescription) -> BackboneDescription:
    """The description with its names in other libraries, where those are not its own matter."""
    return LibraryResNet() if type(description) is ResNetDescription else description


def library_families() -> list[BackboneDescription]:
    """``families`` with their names in other libraries."""
    return [in_libraries(family) for family in families()]


@cache
def _library_names() -> dict[str, str]:
    """By the names of torchvision and timm, those here: ``layer1.0.bn1.bias`` is ``res2.0.conv1.norm.bias``."""
    modules = {"conv1": "stem.conv1", "bn1": "stem.conv1.norm"}
    most_blocks = max(max(blocks) for blocks in BLOCKS_PER_STAGE.values())
    for stage, block in product(range(1, 5), range(most_blocks)):
        theirs = f"layer{stage}.{block}"
        ours = f"res{stage + 1}.{block}"
        modules[f"{theirs}.downsample.0"] = f"{ours}.shortcut"
        modules[f"{theirs}.downsample.1"] = f"{ours}.shortcut.norm"
        for n in (1, 2, 3):
            modules[f"{theirs}.conv{n}"] = f"{ours}.conv{n}"
            modules[f"{theirs}.bn{n}"] = f"{ours}.conv{n}.norm"
    tensors = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return {f"{theirs}.{end}": f"{ours}.{end}" for (theirs, ours), end in product(modules.items(), tensors)}
