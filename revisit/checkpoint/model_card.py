"""The text that goes with exported weights: what they are, which input they expect, how to load them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from revisit.checkpoint.export import Backbone
from revisit.modeling.backbone.resnet import BASIC_DEPTHS

LIBRARIES = ("torchvision", "timm")

_CARD = """\
# {name}

The backbone of a ResNet-{depth} for {library}: {count} tensors, {millions:.1f} million parameters, no classifier
(`fc`). An image becomes {features} numbers, the mean of the last map, whose stride is 32.

| | |
|---|---|
| Trained | {origin}; nothing else is on record |
| Network | ResNet-{depth}{variant}, stem of one 7x7 convolution and pooling{strides} |
| Input | RGB in this order, scaled to 0..1, less the mean, over the standard deviation |
| Mean | {mean} ({mean_255} of 0..255) |
| Standard deviation | {std} ({std_255} of 0..255) |
| SHA-256 | `{digest}` |

{snippets}
Any other order of channels, or other pixel statistics, raises no error and costs accuracy.

Licence: {licence}
"""

_SNIPPETS = {
    "torchvision": """\
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
""",
    "timm": """\
In timm:

```python
import timm
import torch
{import_more}
model = timm.create_model("resnet{depth}", num_classes=0{timm_options})
model.load_state_dict({load})
mean, std = torch.tensor({mean_list}).view(3, 1, 1), torch.tensor({std_list}).view(3, 1, 1)
features = model.eval()((torch.rand(1, 3, 224, 224) - mean) / std)
assert features.shape == (1, {features})
```
""",
}


def model_card(backbone: Backbone, weights: Path, library: str) -> str:
    """Text of the card, in Markdown, for a backbone that was exported to the file ``weights``.

    Its snippets load the file from the folder that Python runs in. ``library``, one of ``LIBRARIES``, comes first.
    """
    flags = backbone.flags
    depth = flags["MODEL.RESNETS.DEPTH"]
    is_basic = depth in BASIC_DEPTHS
    groups, width = (
        (1, 64) if is_basic else (flags[f"MODEL.RESNETS.{key}"] for key in ("NUM_GROUPS", "WIDTH_PER_GROUP"))
    )
    is_plain = (groups, width) == (1, 64)
    mean, std = ([round(value / 255, 6) for value in flags[f"MODEL.PIXEL_{name}"]] for name in ("MEAN", "STD"))
    parameters = [value for key, value in backbone.tensors.items() if key.endswith((".weight", ".bias"))]
    name = json.dumps(weights.name)
    is_safe = weights.suffix == ".safetensors"
    facts = {
        "name": weights.name,
        "depth": depth,
        "library": " and ".join([library, *(other for other in LIBRARIES if other != library)]),
        "count": len(backbone.tensors),
        "millions": sum(value.numel() for value in parameters) / 1e6,
        "features": 512 if is_basic else 2048,
        "origin": backbone.origin or "by an unknown source",
        "variant": "" if is_plain else f" of {groups} groups of width {width}",
        "strides": "" if is_basic else "; strides in the 3x3 convolutions",
        "mean": _listed(mean),
        "std": _listed(std),
        "mean_255": _listed(flags["MODEL.PIXEL_MEAN"]),
        "std_255": _listed(flags["MODEL.PIXEL_STD"]),
        "mean_list": mean,
        "std_list": std,
        "digest": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "licence": _licence(backbone.origin),
        "import_more": "from safetensors.torch import load_file\n" if is_safe else "",
        "load": f"load_file({name})" if is_safe else f"torch.load({name}, weights_only=True)",
        "torchvision_options": "" if is_plain else f"groups={groups}, width_per_group={width}",
        "timm_options": "" if is_plain else f", cardinality={groups}, base_width={width}",
    }
    order = sorted(LIBRARIES, key=lambda other: other != library)
    return _CARD.format(snippets="\n".join(_SNIPPETS[other].format(**facts) for other in order), **facts)


def _listed(values: list[float]) -> str:
    return ", ".join(map(str, values))


def _licence(origin: str) -> str:
    if origin.startswith("revisit:"):
        return (
            "whoever trained the weights says it; the terms of the images may bind them too. Revisit, the code, is "
            "Apache-2.0."
        )
    return (
        "that under which the weights were published. Exporting them with Revisit, which is Apache-2.0, adds nothing."
    )
