"""Labels through videos: by the evaluation's propagation, from any frame, after any interruption, for other tools."""

import gc
import json
import re
import runpy
import shutil
import sys
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import torch
from commands import REAL_DATA, ROOT, documented, one_line_error
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from kills import ALL, kill_at_every_change
from PIL import Image
from pycocotools.coco import COCO
from trees import blank_image, refused, touch

from projects.FrozenEvaluations import davis
from projects.Labels import propagating, video_frames
from projects.Labels.brush_labels import brush_runs
from projects.Labels.given_masks import given_masks
from projects.Labels.propagating import passes_of, propagate
from projects.Labels.video_frames import Video, find_videos
from projects.Pictures.label_maps import palette_image
from revisit.data.sources.catalog import get_records
from revisit.data.sources.labels import read_ids
from revisit.engine.setup import make_config
from revisit.jobs.processes import HERE
from revisit.jobs.runner import PerProcess

NEAR = "LABEL_PROPAGATION.RADIUS 4.0 LABEL_PROPAGATION.NUM_CONTEXT 3"
SIZE = (48, 64)


@pytest.fixture
def film(tmp_path) -> Path:
    """A folder of ten frames in which two rectangles move over noise, and of the first one's ids, as /data has them."""
    rng = np.random.default_rng(0)
    ground = rng.integers(0, 90, (*SIZE, 3), np.uint8)
    (tmp_path / "film").mkdir()
    for number in range(10):
        frame = ground.copy()
        frame[8:24, 2 * number : 2 * number + 16] = (220, 60, 60)
        frame[28:44, 44 - 3 * number : 60 - 3 * number] = (60, 200, 230)
        Image.fromarray(frame).save(tmp_path / f"film/{number}.png")
    write_ids(tmp_path / "first.png", ids_of(0))
    return tmp_path / "film"


def ids_of(number: int, one: int = 1, two: int = 2) -> np.ndarray:
    """Where the rectangles of ``film`` are."""
    ids = np.zeros(SIZE, np.uint8)
    ids[8:24, 2 * number : 2 * number + 16] = one
    ids[28:44, 44 - 3 * number : 60 - 3 * number] = two
    return ids


def write_ids(path: Path, ids: np.ndarray) -> Path:
    path.parent.mkdir(exist_ok=True)
    palette_image(ids).save(path)
    return path


def command(words: str) -> None:
    """``tools/propagate.py`` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["propagate.py", *words.split()])
        runpy.run_path(f"{ROOT}/tools/propagate.py")["main"]()


@pytest.fixture
def carried(film, weights, tmp_path):
    """Calls the command on ``film``; its output."""

    def call(given: str = f"--masks {tmp_path}/first.png", name: str = "out", pairs: str = NEAR) -> Path:
        command(f"--weights {weights} --frames {film} {given} --output {tmp_path / name} {pairs}")
        return tmp_path / name

    return call


def masks_in(output: Path, video: str = "film") -> dict[str, np.ndarray]:
    files = sorted((output / "masks" / video).iterdir())
    return {path.stem: read_ids(path) for path in files}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not np.array_equal(found[name], expected[name])] == []


def test_masks_are_those_of_the_evaluation(run_project, weights, toy_root, tmp_path):
    output, _ = run_project("FrozenEvaluations/propagation", "LABEL_PROPAGATION.NUM_CONTEXT 5", weights)
    root = toy_root / "toy_scenes/DAVIS"
    for name in ("toy-01", "toy-02"):
        first = root / f"Annotations/480p/{name}/00000.png"
        frames, pairs = root / f"JPEGImages/480p/{name}", NEAR.replace("CONTEXT 3", "CONTEXT 5")
        command(f"--weights {weights} --frames {frames} --masks {first} --output {tmp_path / name} {pairs}")
        assert_same(masks_in(tmp_path / name, name), masks_in(output, name))


@pytest.mark.real_data
@pytest.mark.skipif(not (REAL_DATA / "davis/DAVIS").is_dir(), reason=f"no DAVIS in {REAL_DATA}")
def test_davis_is_scored_as_by_the_evaluation(tmp_path, monkeypatch, capsys):
    """Two videos, by two processes."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(REAL_DATA / "davis"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names, weights = ("car-shadow", "libby"), "imagenet:efficientnet_lite0"
    for name in names:
        write_ids(tmp_path / f"masks/{name}.png", read_ids(mask_of(name)))
        shutil.copytree(REAL_DATA / f"davis/DAVIS/JPEGImages/480p/{name}", tmp_path / f"videos/{name}")
    command(
        f"--weights {weights} --frames {tmp_path}/videos --masks {tmp_path}/masks --output {tmp_path}/out --processes 2"
    )
    evaluation = "projects/FrozenEvaluations/propagation.py"
    recipe = "projects/FrozenEvaluations/configs/propagation/any_start.yaml"
    words = f"{evaluation} --config-file {recipe} --weights {weights} --output {tmp_path}/evaluated"
    monkeypatch.setattr(sys, "argv", [*words.split(), "LABEL_PROPAGATION.SEQUENCES", str(names)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(evaluation, run_name="__main__")
    assert not end.value.code
    scores = []
    for sequence in davis.find_sequences(REAL_DATA / "davis/DAVIS", "480p", "val", names):
        found = np.stack([*masks_in(tmp_path / "out", sequence.name).values()])
        scores += davis.score_sequence(sequence.name, found, davis.read_masks(sequence, found.shape[1:]))
    totals = {name: round(100 * value, 2) for name, value in davis.summarize(scores).items()}
    results = json.loads((tmp_path / "evaluated/results.json").read_text())
    assert totals == {name: results[name] for name in totals} and totals["J&F-Mean"] > 75
    with capsys.disabled():
        print(totals)


def mask_of(name: str) -> Path:
    return REAL_DATA / f"davis/DAVIS/Annotations/480p/{name}/00000.png"


def test_objects_are_followed_and_other_tools_read_them(carried, film, tmp_path):
    output = carried()
    masks = masks_in(output)
    assert [*masks] == [str(n) for n in range(10)] and np.array_equal(masks["0"], ids_of(0))
    for number in (1, 2):
        overlap = (masks["1"] == number) & (ids_of(1) == number)
        assert overlap.sum() > 0.3 * (ids_of(1) == number).sum()  # by a network as it is drawn; a twelfth by chance
    assert not (output / "parts").exists() and cv2.imread(str(output / "sheets/film.png")).shape[0] > 3 * 300
    objects = [(frame, each) for frame, ids in masks.items() for each in np.setdiff1d(ids, 0).tolist()]

    coco = COCO(str(output / "data_set.json"))
    found = coco.loadAnns(coco.getAnnIds())
    frames = [Path(coco.imgs[each["image_id"]]["file_name"]).stem for each in found]
    assert [(frame, each["track_id"]) for frame, each in zip(frames, found, strict=True)] == objects
    for (frame, number), each in zip(objects, found, strict=True):
        assert np.array_equal(coco.annToMask(each), masks[frame] == number)
        rows, columns = np.nonzero(masks[frame] == number)
        box = [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
        assert each["bbox"] == box and each["area"] == len(rows)
    records = get_records(f"coco:{film}:{output}/data_set.json")
    assert [record["file_name"] for record in records] == [str(film / f"{n}.png") for n in range(10)]

    tasks = json.loads((output / "label_studio.json").read_text())
    assert [task["data"]["image"].rpartition("/")[2] for task in tasks] == [f"{n}.png" for n in range(10)]
    results = [result for task in tasks for result in task["predictions"][0]["result"]]
    for (frame, number), result in zip(objects, results, strict=True):
        words = of_brush(result["value"]["rle"])
        assert (result["original_height"], result["original_width"]) == SIZE
        assert np.array_equal(words, np.where(masks[frame] == number, 255, 0).repeat(4))
    interface = ElementTree.parse(output / "label_studio.xml").getroot()
    brush = interface.find("BrushLabels")
    assert brush.get("name") == results[0]["from_name"] and interface.find("Image").get("name") == brush.get("toName")
    assert [label.get("value") for label in brush] == results[0]["value"]["brushlabels"] == ["object"]

    tracks = ElementTree.parse(output / "cvat/film.xml").getroot().findall("track")
    assert len(tracks) == len(objects)
    for (frame, number), track in zip(objects, tracks, strict=True):
        (mask,) = track  # of a track that begins with a mask CVAT imports no second one
        assert (track.get("group_id"), mask.get("frame"), mask.get("outside")) == (str(number), frame, "0")
        assert np.array_equal(of_cvat(mask.attrib, SIZE), masks[frame] == number)


def of_brush(data: list[int]) -> np.ndarray:
    """The words that the bytes of thi.ng/rle-pack stand for, a bit after the other."""
    bits = "".join(f"{byte:08b}" for byte in data)
    at = 0

    def read(count: int) -> int:
        nonlocal at
        at += count
        assert at <= len(bits)
        return int(bits[at - count : at], 2)

    count, word = read(32), read(5) + 1
    lengths = [read(4) + 1 for _ in range(4)]
    words: list[int] = []
    while len(words) < count:
        is_run = read(1)
        length = read(lengths[read(2)]) + 1
        words += [read(word)] * length if is_run else [read(word) for _ in range(length)]
    assert len(words) == count and len(bits) - at < 8
    return np.array(words)


def of_cvat(mask: dict[str, str], size: tuple[int, int]) -> np.ndarray:
    left, top, width, height = (int(mask[name]) for name in ("left", "top", "width", "height"))
    runs = [int(run) for run in mask["rle"].split(",")]
    part = np.repeat(np.arange(len(runs)) % 2, runs).reshape(height, width)
    canvas = np.zeros(size, bool)
    canvas[top : top + height, left : left + width] = part
    return canvas


@given(st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(lambda size: arrays(bool, size)))
def test_brush_runs_are_what_they_stand_for(mask):
    assert np.array_equal(of_brush(brush_runs(mask)), np.where(mask, 255, 0).repeat(4))


def test_a_run_longer_than_its_lengths_hold_is_several():
    mask = np.zeros((200, 300), bool)
    mask[50:, 10:] = True
    data = brush_runs(mask)
    assert np.array_equal(of_brush(data), np.where(mask, 255, 0).repeat(4)) and max(data) < 256


def test_a_mask_may_be_given_for_any_frame(carried, film, weights, tmp_path):
    """Frames after it follow as of a video that begins there, those before as of one that ends there, backwards."""
    write_ids(tmp_path / "given/4.png", ids_of(4))
    both = masks_in(carried(f"--masks {tmp_path}/given", "both"))
    orders = {"after": range(4, 10), "before": range(4, -1, -1)}
    for name, order in orders.items():
        (tmp_path / name).mkdir()
        for place, number in enumerate(order):
            shutil.copy(film / f"{number}.png", tmp_path / name / f"{place}.png")
        output = tmp_path / f"{name}_out"
        words = f"--frames {tmp_path / name} --masks {tmp_path}/given/4.png --output {output}"
        shutil.copy(tmp_path / "given/4.png", tmp_path / f"{name}.png")
        command(f"--weights {weights} {words.replace('given/4', name)} {NEAR}")
        found = {str(number): both[str(number)] for number in order}
        assert_same(found, {str(n): ids for n, ids in zip(order, masks_in(output, name).values(), strict=True)})


def test_frames_follow_from_the_last_mask_before_them(carried, tmp_path):
    write_ids(tmp_path / "two/0.png", ids_of(0))
    write_ids(tmp_path / "two/5.png", ids_of(5, one=7, two=0))
    alone = masks_in(carried())
    both = masks_in(carried(f"--masks {tmp_path}/two", "two_out"))
    assert_same({n: both[n] for n in "01234"}, {n: alone[n] for n in "01234"})
    assert np.array_equal(both["5"], ids_of(5, one=7, two=0))
    assert {number for n in "56789" for number in np.unique(both[n]).tolist()} == {0, 7}


@pytest.mark.parametrize(("context", "step"), [(3, 1 if ALL else 17), (0, 1 if ALL else 45)])
def test_a_killed_command_goes_on_bit_for_bit(context, step, carried, tmp_path, monkeypatch):
    pairs = NEAR.replace("CONTEXT 3", f"CONTEXT {context}")
    whole = carried(name="whole", pairs=pairs)
    files = {path.relative_to(whole): path.read_bytes() for path in whole.rglob("*.*") if path.name != "settings.json"}
    output = tmp_path / "killed"

    def look() -> None:
        for path in (output / "masks").rglob("*.png"):
            assert path.read_bytes() == files[path.relative_to(output)]

    def all_there() -> None:
        found = {path.relative_to(output): path.read_bytes() for path in output.rglob("*.*")}
        assert found.keys() - {Path("settings.json")} == files.keys()
        texts = {name: data.replace(b"/killed", b"/whole") for name, data in found.items() if name in files}
        assert texts == files

    call = partial(carried, name="killed", pairs=pairs)
    begin = partial(shutil.rmtree, output, ignore_errors=True)
    assert kill_at_every_change(call, output, begin=begin, look=look, whole=all_there, step=step) > 2


def test_frames_that_are_written_are_not_made_again(carried, tmp_path, monkeypatch):
    whole = masks_in(carried(name="whole"))
    write, made = propagating.write_mask, []

    def write_and_stop(path: Path, ids: np.ndarray) -> None:
        write(path, ids)
        made.append(path.stem)
        if made[-1] in stops:
            raise KeyboardInterrupt

    monkeypatch.setattr(propagating, "write_mask", write_and_stop)
    for stops in ("2", "7", ""):
        if stops:
            with pytest.raises(KeyboardInterrupt):
                carried()
        else:
            output = carried()
    assert "".join(made) == "012" + "034567" + "089"  # the given one is written each time
    assert_same(masks_in(output), whole)
    made.clear()
    assert_same(masks_in(carried()), whole)
    assert made == ["0"]


def test_two_processes_write_the_same(film, weights, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copytree(film, tmp_path / "videos/one")
    shutil.copytree(film, tmp_path / "videos/two")
    write_ids(tmp_path / "masks/one.png", ids_of(0))
    write_ids(make(tmp_path / "masks/two") / "4.png", ids_of(4))
    for name, more in (("alone", ""), ("shared", "--processes 2")):
        frames = f"--frames {tmp_path}/videos --masks {tmp_path}/masks"
        command(f"--weights {weights} {frames} --output {tmp_path / name} {more} {NEAR}")
    alone, shared = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("alone", "shared")
    )
    assert len([name for name in alone if name.suffix == ".png"]) == 2 * 11
    assert {name: data.replace(b"/shared", b"/alone") for name, data in shared.items()} == alone
    tracks = {each["track_id"] for each in json.loads(alone[Path("data_set.json")])["annotations"]}
    assert tracks == {1, 2, 256, 257}


def test_a_video_file_is_its_frames(film, weights, tmp_path):
    writer = cv2.VideoWriter(str(tmp_path / "clip.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, SIZE[::-1])
    for number in range(10):
        writer.write(cv2.imread(str(film / f"{number}.png")))
    writer.release()
    words = f"--weights {weights} --masks {tmp_path}/first.png {NEAR}".split(" LABEL", 1)
    command(f"{words[0]} --frames {tmp_path}/clip.mp4 --output {tmp_path}/out LABEL{words[1]}")
    frames = sorted((tmp_path / "out/frames/clip").iterdir())
    assert [frame.name for frame in frames] == [f"{n:06d}.jpg" for n in range(10)]
    command(f"{words[0]} --frames {frames[0].parent} --output {tmp_path}/again LABEL{words[1]}")
    assert_same(masks_in(tmp_path / "out", "clip"), masks_in(tmp_path / "again", "clip"))
    records = get_records(f"coco:{frames[0].parent}:{tmp_path}/out/data_set.json")
    assert [record["file_name"] for record in records] == [str(frame) for frame in frames]


def test_a_million_frames_of_a_video_file_stay_in_order_and_what_a_mac_adds_is_none(tmp_path):
    for name in ("000000.jpg", "999999.jpg", "1000000.jpg", ".DS_Store"):
        touch(tmp_path / "frames/clip" / name)
    touch(tmp_path / "clip.mp4")
    frames = video_frames._written(Video("clip", [], tmp_path / "clip.mp4"), tmp_path / "frames/clip")
    assert [frame.name for frame in frames] == ["000000.jpg", "999999.jpg", "1000000.jpg"]


def test_a_frame_that_links_to_another_is_a_frame(tmp_path):
    for name in ("clip/f0.png", "clip/f1.png", "clip/f2.png"):
        blank_image(tmp_path / "videos" / name)
    (tmp_path / "videos/clip/f3.png").symlink_to("f2.png")
    (tmp_path / "videos/part").mkdir()
    (tmp_path / "videos/part/f1.png").symlink_to("../clip/f1.png")
    (tmp_path / "again").symlink_to("videos")
    videos = find_videos([tmp_path / "videos", tmp_path / "again", tmp_path / "videos/clip/f0.png"], tmp_path / "out")
    frames = {video.name: [frame.name for frame in video.frames] for video in videos}
    assert frames == {"clip": ["f0.png", "f1.png", "f2.png", "f3.png"], "part": ["f1.png"]}


def test_boxes_by_their_corners_are_filled(carried):
    corners = carried("--boxes 0 8 16 24 44 28 60 44", "corners")
    assert_same(masks_in(corners), masks_in(carried()))


def test_boxes_of_a_data_set_bring_their_frame_their_classes_and_masks(carried, film, tmp_path):
    images = [{"id": n, "file_name": f"{n}.png", "height": SIZE[0], "width": SIZE[1]} for n in range(10)]
    outline = [[44, 28, 60, 28, 60, 44, 44, 44]]
    boxes = [
        {"id": 1, "image_id": 0, "category_id": 9, "bbox": [44, 28, 16, 16], "segmentation": outline, "iscrowd": 0},
        {"id": 2, "image_id": 0, "category_id": 5, "bbox": [0, 8, 16, 16], "iscrowd": 0},
    ]
    categories = [{"id": 5, "name": "crate"}, {"id": 9, "name": "barrel"}]
    content = {"images": images, "annotations": boxes, "categories": categories}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    output = carried(f"--boxes coco:{film}:{tmp_path}/boxes.json")
    assert np.array_equal(masks_in(output)["0"], ids_of(0, one=2, two=1))
    coco = COCO(str(output / "data_set.json"))
    names = {each["track_id"]: coco.cats[each["category_id"]]["name"] for each in coco.anns.values()}
    assert names == {1: "barrel", 2: "crate"}
    labels = {track.get("label") for track in ElementTree.parse(output / "cvat/film.xml").getroot().iter("track")}
    assert labels == {"barrel", "crate"}


VIDEO = Video("clip", [Path(f"videos/clip/f{number}.png") for number in range(5)])
OF_NUMBERS = Video("0003", [Path(f"videos/0003/{number:04d}.png") for number in range(5)])


@pytest.mark.parametrize(
    ("names", "alone", "numbers"),
    [
        ("clip.png clip/f3.png", False, {0: "clip.png", 3: "clip/f3.png"}),
        ("clip.png f3.png", True, {0: "clip.png", 3: "f3.png"}),
        ("clip.png other.png", True, {0: "clip.png"}),  # of another video
        ("clip/f1.png f3.png", True, {1: "clip/f1.png", 3: "f3.png"}),
        ("f0.png f4.PNG ._f2.png", True, {0: "f0.png", 4: "f4.PNG"}),
        ("CLIP.png clip.PNG", False, {0: "clip.PNG"}),
        ("other.png", True, {0: "other.png"}),
    ],
)
def test_every_mask_in_a_folder_counts_for_its_frame(names, alone, numbers, tmp_path, capsys):
    touch(*(tmp_path / name for name in names.split()))
    given = given_masks(VIDEO, [tmp_path], alone=alone)
    assert given.masks == {number: tmp_path / name for number, name in numbers.items()}
    assert ("left out other.png" in capsys.readouterr().out) == (names == "clip.png other.png")


@pytest.mark.parametrize(
    ("names", "places", "message"),
    [
        ("clip.png clip/f0.png", ".", "clip.png and .*clip/f0.png are both masks of frame f0 of clip"),
        ("a/f2.png b/f2.png", "a b", "a/f2.png and .*b/f2.png are both masks of frame f2 of clip"),
        ("f2.png f2.PNG", ".", "f2.PNG and .*f2.png are both masks of frame f2"),
        ("clip.png wrong.png", "clip.png wrong.png", "wrong.png is of no frame of clip"),
        ("clip.png clip/wrong.png", ".", "wrong.png is of no frame of clip"),
    ],
)
def test_masks_of_one_frame_or_of_none_are_refused(names, places, message, tmp_path):
    touch(*(tmp_path / name for name in names.split()))
    refused(message, given_masks, VIDEO, [tmp_path / place for place in places.split()], alone=True)


def test_a_videos_mask_is_of_its_first_frame_though_a_later_one_has_the_videos_name(tmp_path):
    touch(tmp_path / "0003.png")
    assert given_masks(OF_NUMBERS, [tmp_path], alone=False).masks == {0: tmp_path / "0003.png"}
    for place in (tmp_path, tmp_path / "0003.png"):  # of the only video it may be that frame's
        refused("may be of the first frame.*: expected 0003/0000.png or", given_masks, OF_NUMBERS, [place], alone=True)
    touch(tmp_path / "in/0003/0003.png")
    assert given_masks(OF_NUMBERS, [tmp_path / "in"], alone=True).masks == {3: tmp_path / "in/0003/0003.png"}


def test_a_white_mask_is_one_object(carried, tmp_path):
    write_ids(tmp_path / "white.png", np.where(ids_of(0) == 1, np.uint8(255), np.uint8(0)))
    masks = masks_in(carried(f"--masks {tmp_path}/white.png"))
    assert np.array_equal(masks["0"], ids_of(0, two=0)) and 1 in masks["1"]


class Frame(np.ndarray):
    """Pixels that can be referred to weakly."""


def test_of_a_thousand_frames_few_are_held(tmp_path, monkeypatch):
    """And as many tensors after 900 as after 100, none of them larger."""
    frames, held, alive, tensors = [tmp_path / f"{n}.png" for n in range(1000)], weakref.WeakSet(), [], {}
    rng = np.random.default_rng(0)

    def read(record: dict, pixels: object) -> np.ndarray:
        number = int(record["file_name"].stem)
        frame = rng.integers(0, 256, (24, 32, 3), np.uint8).view(Frame)
        held.add(Held(frame))
        alive.append(len(held))
        if number in (100, 900):
            gc.collect()
            tensors[number] = sorted(each.numel() for each in gc.get_objects() if type(each) is torch.Tensor)
        return frame

    class Held:
        """As long as the frame."""

        def __init__(self, frame: Frame):
            frame.holder = self

    monkeypatch.setattr(propagating, "require_record", read)
    network = SimpleNamespace(map_of=lambda image: torch.tensor(image[::4, ::4]).permute(2, 0, 1).float() + 1)
    cfg = make_config("projects/FrozenEvaluations/configs/propagation/any_start.yaml", [], seed=0)
    passes = passes_of(Video("film", frames), [0], tmp_path / "out")
    write_ids(make(tmp_path / "out/masks/film") / "0.png", np.ones((24, 32), np.uint8))
    propagate(cfg, PerProcess(lambda: network), passes, tmp_path / "out", HERE)
    assert len(masks_in(tmp_path / "out")) == len(alive) == 1000 and max(alive) <= 2
    assert tensors[100] == tensors[900]
    assert len([*(tmp_path / "out/parts").rglob("*.npy")]) == cfg.LABEL_PROPAGATION.NUM_CONTEXT


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "nothing to propagate: expected --masks, or --boxes"),
        ("--masks {0}/first.png --boxes 1 1 9 9", "nothing to propagate: expected --masks, or --boxes"),
        ("--masks {0}/none.png", "none.png: no such file or folder"),
        ("--masks {0}/empty", "no mask of film: expected film.png or film/.*png below --masks"),
        ("--masks {0}/zero.png", "zero.png has no object: expected a palette's or grey ids"),
        ("--masks {0}/large.png", "large.png is 64 x 49 pixels, but its image .*/film/0.png is 64 x 48"),
        ("--masks {0}/film/0.png", "is in mode RGB: expected one id a pixel"),
        ("--masks {0}/first.png {0}/zero.png", "first.png is of no frame of film: expected the name of one, such as 0"),
        ("--boxes 1 2 3", "--boxes has 3 numbers: expected four an object"),
        ("--boxes 9 9 1 1", "box 1, .*, has no pixel of .*/film/0.png .64 x 48. of its own"),
        ("--boxes coco:{0}/film:{0}/large.json", "has boxes in px of 128 x 96, but .*film/0.png is 64 x 48, upright"),
        ("--boxes 1 1 9 x", "expected X0 Y0 X1 Y1 for each object, or one data set"),
    ],
)
def test_what_is_given_has_to_fit(given, message, film, weights, tmp_path):
    (tmp_path / "empty").mkdir()
    write_ids(tmp_path / "zero.png", np.zeros(SIZE, np.uint8))
    write_ids(tmp_path / "large.png", np.ones((49, 64), np.uint8))
    image = {"id": 1, "file_name": "0.png", "height": 96, "width": 128}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [20, 20, 30, 30]}
    content = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "crate"}]}
    (tmp_path / "large.json").write_text(json.dumps(content))
    words = f"--weights {weights} --frames {film} {given.format(tmp_path)} --output {tmp_path}/out"
    assert re.search(message, one_line_error(f"python tools/propagate.py {words}", tmp_path))
    assert not [*tmp_path.glob("out/masks/film/*")]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("3.png", lambda data: data[: len(data) // 2], "unreadable frame .*/film/3.png: .*expected a complete file"),
        ("5.png", lambda data: data[:20], "5.png has no size that can be read"),
        ("4.jpg", lambda data: data, "has two frames of one name: expected one suffix for all"),
    ],
)
def test_damaged_frames_are_refused_before_anything_is_made(name, change, message, film, weights, tmp_path):
    data = (film / f"{name[0]}.png").read_bytes()
    (film / name).write_bytes(change(data))
    words = f"--weights {weights} --frames {film} --masks {tmp_path}/first.png --output {tmp_path}/out"
    assert re.search(message, one_line_error(f"python tools/propagate.py {words}", tmp_path))
    assert not (tmp_path / "out/masks").exists()


def test_frames_of_two_sizes_are_refused(film, weights, tmp_path):
    Image.fromarray(np.zeros((48, 65, 3), np.uint8)).save(film / "7.png")
    words = f"--weights {weights} --frames {film} --masks {tmp_path}/first.png --output {tmp_path}/out"
    line = one_line_error(f"python tools/propagate.py {words}", tmp_path)
    assert "7.png is 65 x 48 pixels, and 0.png 64 x 48: expected frames of one size" in line


def test_another_mask_or_reach_needs_another_output(carried, film, weights, tmp_path):
    carried()
    write_ids(tmp_path / "other.png", ids_of(0, one=2, two=1))
    words = f"python tools/propagate.py --weights {weights} --frames {film} --output {tmp_path}/out --masks {tmp_path}"
    line = one_line_error(f"{words}/other.png {NEAR}", tmp_path)
    assert "was made with other settings (masks): give another --output" in line
    line = one_line_error(f"{words}/first.png {NEAR.replace('4.0', '5.0')}", tmp_path)
    assert "LABEL_PROPAGATION.RADIUS 4.0, now 5.0" in line
    (tmp_path / "out/data_set.json").write_text("corrected")
    line = one_line_error(f"{words}/first.png {NEAR}", tmp_path)
    assert "data_set.json has been changed since it was written" in line
    assert (tmp_path / "out/data_set.json").read_text() == "corrected"


@pytest.mark.parametrize("name", ["masks/film/0.png", "masks/film/5.png", "label_studio.json", "cvat/film.xml"])
def test_what_somebody_has_corrected_is_not_replaced(name, carried):
    output = carried()
    carried()
    corrected = output / name
    if corrected.suffix == ".png":
        write_ids(corrected, ids_of(9))
        (output / "masks/film/9.png").unlink()  # so that the pass would be made again
    else:
        corrected.write_text(corrected.read_text() + " ")
    before = corrected.read_bytes()
    refused(f"{corrected} has been changed since it was written", carried)
    assert corrected.read_bytes() == before
    corrected.unlink()
    carried()


def test_the_page_s_commands_run(film, weights, tmp_path):
    """On drawn frames, for those of a video; and with a drawn network."""
    shutil.copytree(film, tmp_path / "videos/film")
    write_ids(tmp_path / "masks/film.png", ids_of(0))
    commands = [words for words in documented("projects/Labels/propagate.md") if "propagate.py" in words]
    assert len(commands) == 3
    for number, words in enumerate(commands):
        words = words.partition("propagate.py ")[2].replace("imagenet:efficientnet_lite0", weights)
        words = words.replace("/data/film.mp4", str(film)).replace("/data", str(tmp_path))
        command(f"{words.replace('output/labels', f'{tmp_path}/out{number}')} {NEAR}")
        assert len(masks_in(tmp_path / f"out{number}")) == 10
