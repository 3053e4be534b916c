"""``timm:NAME``: weights that timm fetches from its hub, converted."""

from functools import partial
from pathlib import Path

from projects.Weights.stated_weights import flags_of_name, without_plain_resnet
from revisit.checkpoint.backbone_file import write_backbone
from revisit.checkpoint.convert import convert
from revisit.checkpoint.named_weights import NAMED_WEIGHTS_REGISTRY, kept_file
from revisit.errors import UserError, did_you_mean, expect, first_line


@NAMED_WEIGHTS_REGISTRY.register()
def timm(name: str) -> Path:
    """The converted file of ``timm:NAME``, where a name without a tag stands for timm's default weights. A plain ResNet
    becomes Detectron2's.

    Raises UserError for a name without weights, or where the hub cannot be reached.
    """
    from timm import models

    network = name.partition(".")[0]
    is_network = name == network and models.is_model(network)
    full_name = f"{network}.{models.get_pretrained_cfg(network).tag}" if is_network else name
    known = models.list_pretrained()
    names = [other for other in known if other.startswith(f"{network}.")]
    expected = ", ".join(names) or f"a name of timm.list_pretrained(){did_you_mean(name, known, most=3)}"
    expect(full_name in known, f"timm:{name}: timm has no such weights; expected {expected}")
    return kept_file(f"timm/{full_name}.pth", partial(_write, full_name))


def _write(name: str, output: Path) -> None:
    import timm

    try:
        network = timm.create_model(name, pretrained=True)
    except Exception as error:  # whatever the libraries of a hub raise
        way_out = "run it once where there is a network, or convert a file that you have by --timm"
        raise UserError(f"timm:{name} cannot be fetched ({first_line(error)}): {way_out}") from error
    stated = without_plain_resnet(flags_of_name(name))
    origin = f"{name} of timm {timm.__version__}"
    weights = convert(network.state_dict(), "timm", origin, stated)
    licence = timm.models.get_pretrained_cfg(name).license
    write_backbone(weights._replace(licence=licence or weights.licence), output)
