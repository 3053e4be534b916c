"""Names of data sets of windows, and of what is made of them."""

from trees import refused

from projects.Tiles.tiled_names import tiling_and_name
from projects.Tiles.windows import Tiling


def test_names_of_windows_alone_are_split():
    assert tiling_and_name("tiles:256+64:coco:/a:/b.json") == (Tiling(256, 64), "coco:/a:/b.json")
    assert tiling_and_name("coco:/tiles:/b.json") == (None, "coco:/tiles:/b.json")
    refused("expected px, perhaps .overlap", tiling_and_name, "tiles:many:folder:x")
