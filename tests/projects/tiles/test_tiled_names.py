"""Names of data sets of windows, and of what is made of them."""

from labels import inspected
from test_tiled_sets import labelled_photographs, photograph
from trees import refused

from projects.Tiles.tiled_names import tiling_and_name, whole_of
from projects.Tiles.tiled_sets import is_scored_whole
from projects.Tiles.windows import Tiling
from revisit.data.sources.catalog import get_records


def test_names_of_windows_alone_are_split():
    assert tiling_and_name("tiles:256+64:coco:/a:/b.json") == (Tiling(256, 64), "coco:/a:/b.json")
    assert tiling_and_name("coco:/tiles:/b.json") == (None, "coco:/tiles:/b.json")
    refused("expected px, perhaps .overlap", tiling_and_name, "tiles:many:folder:x")


def test_windows_of_channels_in_files_are_scored_on_images_of_such_channels():
    assert whole_of("tiles:64:coco:/a:/b.json") == "coco:/a:/b.json"
    assert (
        whole_of("files:tiles:64+8@0.5:coco:/a:/b.json:{}_D.tif,{}_F.tif") == "files:coco:/a:/b.json:{}_D.tif,{}_F.tif"
    )


def test_some_windows_of_images_are_refused_before_they_are_scored(tmp_path):
    name = labelled_photographs(tmp_path, [10, 10, 20, 20], [60, 10, 20, 20], [300, 200, 50, 50])
    expected = "no score on whole images: expected all windows of a data set, tiles:200:NAME"
    refused(expected, inspected, f"held_out:tiles:200:{name}:1:2:1", to_learn=False)
    refused(expected, whole_of, f"subset:2:1:tiles:200:{name}")
    inspected(f"tiles:200:{name}", to_learn=False)
    inspected(f"subset:2:1:tiles:200:{name}", to_learn=True)


def test_windows_of_classified_images_are_scored_themselves(tmp_path):
    for kind in ("birch", "pine"):
        (tmp_path / kind).mkdir()
        photograph().save(tmp_path / kind / "a.png")
    name = f"subset:4:1:tiles:256:class_folders:{tmp_path}"
    assert len(get_records(name)) == 4 and not is_scored_whole(name)
