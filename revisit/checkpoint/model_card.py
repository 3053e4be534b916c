"""The text that goes with exported weights: what they are, which input they expect, how to load them."""

import hashlib
import json
from pathlib import Path

from revisit.checkpoint.convert import BackboneWeights

_CARD = """\
# {name}

The backbone of a {title} for {libraries}: {count} tensors, {millions:.1f} million parameters, {output}

| | |
|---|---|
| Trained | {origin}; nothing else is on record |
| Network | {network} |
| Input | {channels} in this order, scaled to 0..1, less the mean, over the standard deviation |
| Mean | {mean} ({mean_255} of 0..255) |
| Standard deviation | {std} ({std_255} of 0..255) |
| SHA-256 | `{digest}` |

{snippets}
Any other order of channels, or other pixel statistics, raises no error and costs accuracy.

Licence: {licence}
"""
_OWN_LICENCE = """\
whoever trained the weights says it; the terms of the images may bind them too. Revisit, the code, is Apache-2.0."""
_FOREIGN_LICENCE = """\
that under which the weights were published. Exporting them with Revisit, which is Apache-2.0, adds nothing."""


def model_card(backbone: BackboneWeights, weights: Path, library: str) -> str:
    """Text of the card, in Markdown, for a backbone that was exported to the file ``weights``.

    Its snippets load the file from the folder that Python runs in. ``library``, one of ``LIBRARIES``, comes first.
    """
    flags, name = backbone.flags, json.dumps(weights.name)
    snippets = backbone.description.SNIPPETS
    order = sorted(snippets, key=lambda other: other != library)
    mean_255, std_255 = flags["MODEL.PIXEL_MEAN"], flags["MODEL.PIXEL_STD"]
    mean, std = ([round(value / 255, 6) for value in values] for values in (mean_255, std_255))
    parameters = [value for key, value in backbone.tensors.items() if key.endswith((".weight", ".bias"))]
    is_safe = weights.suffix == ".safetensors"
    facts = {
        "name": weights.name,
        "title": backbone.title,
        "libraries": " and ".join(order),
        "count": len(backbone.tensors),
        "millions": sum(value.numel() for value in parameters) / 1e6,
        "origin": backbone.origin or "by an unknown source",
        "channels": flags["INPUT.FORMAT"],
        "mean_list": mean,
        "std_list": std,
        "mean": str(mean)[1:-1],
        "std": str(std)[1:-1],
        "mean_255": str(mean_255)[1:-1],
        "std_255": str(std_255)[1:-1],
        "digest": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "licence": _OWN_LICENCE if backbone.source == "revisit" else _FOREIGN_LICENCE,
        "import_more": "from safetensors.torch import load_file\n" if is_safe else "",
        "load": f"load_file({name})" if is_safe else f"torch.load({name}, weights_only=True)",
        **backbone.description.card(flags),
    }
    return _CARD.format(snippets="\n".join(snippets[other].format(**facts) for other in order), **facts)
