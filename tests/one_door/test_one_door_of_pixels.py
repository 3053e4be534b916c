"""What the samples of images mean is one value, PixelFormat; who decodes a file itself stands here, and why."""

import ast
from collections.abc import Iterator

from test_house import nodes_of, trees

MEANINGS = {"bit_depth", "bits", "channels", "range", "nodata"}
OF_VALUES = {"projects/Pixels/grey_levels.py: to_grey_levels(bits)"}  # where the format becomes grey levels
DECODERS = {"imread", "imdecode", "open_image"}
DECODING = {
    "projects/Pixels/grey_levels.py",
    "projects/Pixels/photographs.py",
    "projects/Labels/belonging.py",  # the day of EXIF, no pixels
    "projects/Labels/near_copies.py",  # at a quarter of each side: what two images correlate by, whatever they mean
    "projects/Predict/file_predictions.py",  # as Reports/page.py
    "projects/Reports/page.py",  # pictures that this project has drawn
    "projects/Tiles/tile_files.py",  # a window's PPM, to write it as PNG
    "revisit/data/images/deep_images.py",
    "revisit/data/images/reader.py",
    "revisit/data/sources/labels.py",  # masks
    "tools/demo.py",  # as Reports/page.py
}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path, tree in trees().items():
        if path.parts[0] in ("revisit", "projects", "tools"):
            yield from ((str(path), node) for node in nodes_of(tree) if isinstance(node, ast.FunctionDef))


def test_no_reader_takes_what_samples_mean_beside_the_pixel_format():
    taken = {
        f"{path}: {node.name}({argument.arg})"
        for path, node in functions()
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.arg in MEANINGS and ast.get_docstring(node) and "uint8" in ast.get_docstring(node)
    }
    assert taken <= OF_VALUES, taken


def test_who_decodes_files_is_known():
    decoding = {
        path
        for path, node in functions()
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in DECODERS
    }
    assert decoding == DECODING
