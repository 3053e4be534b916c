"""What loading, conversion and export have to know of timm's networks."""

from projects.Weights.stated_weights import default_pixels, stated_flags
from projects.Weights.timm_backbone import TimmBackbone
from projects.Weights.timm_networks import Form, form_of, hashable, tensor_names
from revisit.keys import DETECTORS, architecture_of
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS, BackboneDescription, Card, Flags, Tensors

from detectron2.config import CfgNode

_SNIPPET = """\
In timm:

```python
import timm
import torch
{import_more}
model = timm.create_model({timm_name!r}, **{kwargs})
index = model.prune_intermediate_layers([{index}], prune_norm={prune_norm})
model.load_state_dict({load})
mean, std = torch.tensor({mean_list}).view(-1, 1, 1), torch.tensor({std_list}).view(-1, 1, 1)
images = (torch.rand(1, {inputs}, 224, 224) - mean) / std
options = {{"norm": {norm}, "output_fmt": "NCHW", "intermediates_only": True}}
features = model.eval().forward_intermediates(images, indices=index, **options)[-1].mean((2, 3))
assert features.shape == (1, {features})
```
"""


@BACKBONE_DESCRIPTIONS.register()
class TimmDescription(BackboneDescription):
    """Of timm's networks. Their tensors have timm's names after one prefix; which network it is, its name says."""

    NAME, NETWORK, BUILDER = "network of timm's", TimmBackbone, "build_timm_backbone"
    FLAG_KEYS = ("MODEL.TIMM.NAME", "MODEL.TIMM.OPTIONS", "MODEL.TIMM.FINAL_NORM")
    PREFIXES = ("timm.",)
    stated = staticmethod(stated_flags)
    default_pixels = staticmethod(default_pixels)

    def build(self, cfg: CfgNode) -> TimmBackbone:
        options, channels = cfg.MODEL.TIMM, len(cfg.MODEL.PIXEL_MEAN)
        return TimmBackbone(options.NAME, options.OPTIONS, final_norm=options.FINAL_NORM, channels=channels)

    def blocks(self, network: TimmBackbone) -> list[list[str]]:
        """The groups of timm's ``group_matcher``, in whose terms its layer decay is stated."""
        import timm

        groups = timm.models.group_parameters(network.timm, network.timm.group_matcher(coarse=False))
        return [[f"timm.{name}" for name in names] for names in groups.values()]

    def title(self, flags: Flags) -> str:
        name, options, _ = (flags[key] for key in self.FLAG_KEYS)
        heads = ", ".join(map(str, self._form(flags).heads))
        return f"{name} of timm's" + (f" with {options}" if options else "") + (f", {heads} heads" if heads else "")

    def _form(self, flags: Flags) -> Form:
        name, options, final_norm = (flags[key] for key in self.FLAG_KEYS)
        return form_of(name, hashable(options), final_norm)

    def assumed(self, flags: Flags) -> str:
        return f"padding, strides and activations are those of timm's {flags['MODEL.TIMM.NAME']}"

    def library_names(self, stated: Flags) -> dict[str, str | None]:
        """Those of the network that ``stated`` names; what its maps do not need, such as its classifier, is left."""
        if not (name := stated.get("MODEL.TIMM.NAME")):
            return {}
        options = hashable(stated.get("MODEL.TIMM.OPTIONS", ()))
        kept = tensor_names(name, options, stated.get("MODEL.TIMM.FINAL_NORM", True))
        return {key: f"timm.{key}" if key in kept else None for key in tensor_names(name, options, None)}

    def flags_of_tensors(self, tensors: Tensors, stated: Flags) -> Flags:
        """As stated; the final norm counts where the file has it."""
        name, options = stated["MODEL.TIMM.NAME"], list(stated.get("MODEL.TIMM.OPTIONS", ()))
        without = {f"timm.{key}" for key in tensor_names(name, hashable(options), False)}
        norm = stated.get("MODEL.TIMM.FINAL_NORM", not tensors.keys() <= without)
        return dict(zip(self.FLAG_KEYS, (name, options, norm), strict=True))

    def card(self, flags: Flags) -> Card:
        name, _, final_norm = (flags[key] for key in self.FLAG_KEYS)
        form = self._form(flags)
        last = list(form.stages.values())[-1]
        inputs = {"in_chans": count} if (count := len(flags["MODEL.PIXEL_MEAN"])) != 3 else {}
        facts = {"timm_name": name, "kwargs": form.kwargs | inputs, "index": last.index, "features": last.channels}
        facts |= {"norm": final_norm, "prune_norm": not final_norm}
        norm = "its last norm" if final_norm else "no norm after its last block"
        return Card(
            f"{self.title(flags)}, with {norm}",
            f"no head. An image becomes {last.channels} numbers, the mean of the last map, whose stride is "
            f"{last.stride}.",
            facts,
            {"timm": _SNIPPET},
        )

    def keys_to_build(self, flags: Flags, cfg: CfgNode) -> Flags:
        """The builder: of a pyramid where the recipe has one, and none for detectors without it."""
        backbone = cfg.MODEL.BACKBONE.NAME
        has_pyramid = "fpn" in backbone or "pyramid" in backbone
        if backbone.startswith("build_timm_"):
            return {"MODEL.BACKBONE.NAME": backbone}
        if not has_pyramid:
            is_detector = architecture_of(cfg) in DETECTORS
            return {} if is_detector else {"MODEL.BACKBONE.NAME": "build_timm_backbone"}
        kind = "fpn" if len(self._form(flags).stages) > 1 else "simple_pyramid"
        return {"MODEL.BACKBONE.NAME": f"build_timm_{kind}_backbone"}
