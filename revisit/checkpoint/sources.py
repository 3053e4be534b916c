"""Which kind of file a checkpoint is, of all that are registered, and where the weights of a run come from."""

from revisit.checkpoint.reading import tensors_of
from revisit.checkpoint.run_layout import RunLayout, start_of
from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY, SourceLayout, contents_of
from revisit.errors import UserError, did_you_mean, expect
from revisit.modeling.backbone.description import Flags, description_of
from revisit.plugins import load_plugins


def source_layouts() -> dict[str, SourceLayout]:
    """All layouts by name, the plug-ins' too, in the order in which they are asked."""
    load_plugins()
    layouts = sorted((layout() for _, layout in SOURCE_LAYOUT_REGISTRY), key=lambda layout: layout.ORDER)
    return {layout.NAME: layout for layout in layouts}


def recognised(checkpoint: dict, stated: Flags) -> SourceLayout | None:
    """The first layout that recognises a checkpoint."""
    layouts = source_layouts().values()
    return next((layout for layout in layouts if layout.recognises(checkpoint, stated)), None)


def layout_of(checkpoint: dict, source: str, stated: Flags) -> SourceLayout:
    """The layout that is named ``source``; for ``auto`` the first that recognises the checkpoint.

    Raises:
        UserError: there is no such layout, or none that recognises it.
    """
    layouts = source_layouts()
    if source in layouts:
        return layouts[source]
    if source != "auto":
        names = ["auto", *layouts]
        raise UserError(f"--source {source}: expected one of {', '.join(names)}{did_you_mean(source, names)}")
    if layout := recognised(checkpoint, stated):
        return layout
    expect(
        not description_of(tensors_of(checkpoint)),
        "the backbone has Detectron2's names already, as after conversion: use it as MODEL.WEIGHTS",
    )
    expected = ", or ".join(layout.EXPECTED for layout in layouts.values() if layout.EXPECTED)
    raise UserError(f"no backbone recognised in the checkpoint ({contents_of(checkpoint)}): expected {expected}")


def licence_of(origin: str) -> str:
    """Terms of published weights by their origin, such as ``torchvision: resnet50.pth``; "" if not on record."""
    layout = source_layouts().get(origin.partition(":")[0])
    return layout.licence({}, is_named=False) if layout else ""


def origin_of(checkpoint: dict, name: str, source: str, licence: str) -> dict[str, str]:
    """``source`` and ``licence`` of weights that a run starts from, which its checkpoints keep (``start_of``).

    Args:
        checkpoint: the weights' content. A run's checkpoint says both itself, a file of Detectron2's its author.
        name: of their file.
        source: what the file's flags say; "" where they say nothing. ``licence`` likewise.
    """
    if "flags" not in checkpoint:
        source = source or (f"detectron2: {name}" if checkpoint.get("__author__") else f"{name}, of unknown origin")
        licence = licence or licence_of(source)
        is_of_run = source.startswith(f"{RunLayout.NAME}:")
        if not licence and not is_of_run:
            licence = "unknown, because nothing says it of the weights of the start"
        return {"source": source, "licence": licence}
    origin = ", ".join(filter(None, (f"{RunLayout.NAME}: {name}", RunLayout().training(checkpoint))))
    return {"source": origin, "licence": start_of(checkpoint).get("licence", "")}
