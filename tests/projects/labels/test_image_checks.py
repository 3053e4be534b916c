"""What of a data set cannot be read is known before the first step, and one rule says what becomes of it."""

import io
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tifffile
from deep import shallow_picture
from PIL import Image, ImageEnhance
from tiny import tiny_config
from trees import logged, refusal, write

from projects.Labels import leaks as leaks_module
from projects.Labels import soundness
from projects.Labels.leaks import leaks, warn_of_torn
from projects.Labels.near_copies import alike_images
from projects.Labels.soundness import look_at
from revisit.data.images.image_bytes import WINDOW, UnreadableImageError
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import ends_well, read_image, read_record, require_record
from revisit.data.loading.finetune_loader import MappedRecords
from revisit.data.sources.catalog import get_records, register
from revisit.data.sources.records import sample
from revisit.engine.data_checks import inspect_evaluation, inspect_training
from revisit.engine.setup import make_config


def jpeg(**options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.kron(shallow_picture(), np.ones((8, 8, 1), np.uint8))).save(buffer, "JPEG", **options)
    return buffer.getvalue()


WHOLE = jpeg()
HALF = WHOLE[: len(WHOLE) // 2]


def folder_of(path, count, **others):
    for n in range(count):
        write(path / f"{n:03d}.jpg", WHOLE)
    for name, data in others.items():
        write(path / f"{name}.jpg", data)
    return [{"file_name": str(file)} for file in sorted(path.iterdir())]


def test_images_are_judged_by_their_ends_and_a_sample_by_decoding(tmp_path, monkeypatch):
    records = folder_of(tmp_path, 20, cut=HALF, empty=b"", head=WHOLE[:40])
    for sampled in (lambda records: records, lambda records: []):
        monkeypatch.setattr(soundness, "sample", sampled)
        look = look_at(records, PHOTOGRAPHS)
        assert look.seen == 23 and [text.partition(":")[0] for text in look.truncated] == [f"{tmp_path}/cut.jpg"]
        assert [text.partition(":")[0] for text in look.unreadable] == [
            f"{tmp_path}/{n}.jpg" for n in ("empty", "head")
        ]
    monkeypatch.setattr(soundness, "SECONDS", -1.0)
    assert look_at(records, PHOTOGRAPHS) == (0, [], []) and look_at(records, PHOTOGRAPHS, whole=True).seen == 23


def test_the_end_of_a_large_file_is_found_without_reading_it_all(tmp_path):
    """A thumbnail's end does not count, and what stands between head and end is not read."""
    large = WHOLE[:-2] + bytes(100_000) + WHOLE[-2:]
    for data, sound in ((large, True), (large[:-2], False), (b"", False), (WHOLE, True), (HALF, False)):
        write(tmp_path / "a.jpg", data)
        assert ends_well({"file_name": str(tmp_path / "a.jpg")}) == sound
    Image.fromarray(shallow_picture()).save(tmp_path / "b.png")
    data = (tmp_path / "b.png").read_bytes()
    assert ends_well({"file_name": str(tmp_path / "b.png")})
    write(tmp_path / "b.png", data[:-20])
    assert not ends_well({"file_name": str(tmp_path / "b.png")})


def test_windows_of_a_truncated_file_are_unreadable(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    tifffile.imwrite(tmp_path / "scan.tif", pixels, tile=(16, 16), metadata=None, photometric="rgb")
    records = get_records(f"tiles:40:folder:{tmp_path}")
    assert look_at(records, PHOTOGRAPHS) == (1, [], [])
    write(tmp_path / "scan.tif", (tmp_path / "scan.tif").read_bytes()[:-100])
    message = f"{tmp_path}/scan.tif: a TIFF without its end"
    assert look_at(records, PHOTOGRAPHS) == (1, [message], [])


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_truncated_jpeg_is_completed_where_nothing_stands_in_for_it(tmp_path, options, caplog):
    whole = jpeg(**options)
    write(tmp_path / "whole.jpg", whole)
    write(tmp_path / "no_end.jpg", whole[:-2])
    write(tmp_path / "half.jpg", whole[: len(whole) // 2])
    with pytest.raises(UnreadableImageError, match="truncated JPEG"):
        read_image(tmp_path / "half.jpg")
    expected, half = (
        read_image(tmp_path / "whole.jpg"),
        require_record({"file_name": tmp_path / "half.jpg"}, PHOTOGRAPHS),
    )
    assert np.array_equal(require_record({"file_name": tmp_path / "no_end.jpg"}, PHOTOGRAPHS), expected)
    assert half.shape == expected.shape and np.abs(half[:40].astype(int) - expected[:40]).mean() < 12
    assert f"{tmp_path}/half.jpg is a truncated JPEG" in caplog.text


def test_pretraining_replaces_one_percent_and_is_refused_with_more_before_its_first_step(tmp_path, capsys):
    cfg = tiny_config("DATASETS.TRAIN", (f"folder:{tmp_path / 'photos'}",))
    folder_of(tmp_path / "photos", 100, cut=HALF)
    warning = next(text for _, text in logged(inspect_training, cfg) if "stand in" in text)
    assert "101 of 101 images looked at, 1 cannot be read, so others stand in" in warning
    assert f"{tmp_path}/photos/cut.jpg: truncated JPEG" in warning
    write(tmp_path / "photos/empty.jpg")
    line = refusal(inspect_training, cfg)
    assert "102 of 102 images looked at, 2 cannot be read" in line and "at most 1%" in line
    assert f"    {tmp_path}/photos/empty.jpg: " in capsys.readouterr().out


def test_a_set_to_be_scored_may_have_truncated_images_and_no_unreadable_one(tmp_path):
    photos = tmp_path / "photos"
    for label in "ab":
        folder_of(photos / label, 2, cut=HALF)
    cfg = tiny_config("DATASETS.TEST", (f"class_folders:{photos}",), "KNN_EVAL.BANK", f"class_folders:{photos}")
    warning = next(text for _, text in logged(inspect_evaluation, cfg) if "completed with grey" in text)
    assert "6 of 6 images looked at, 0 cannot be read; 2 truncated JPEGs are completed with grey" in warning
    write(photos / "a/000.jpg", b"no image")
    assert f"1 cannot be read, such as {photos}/a/000.jpg" in refusal(inspect_evaluation, cfg)


def test_damaged_masks_and_depth_maps_are_refused_before_the_first_step(tmp_path):
    (image,) = folder_of(tmp_path / "photos", 1)
    mask, depth = tmp_path / "mask.png", tmp_path / "depth.npy"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(mask)
    np.save(depth, np.ones((8, 8), np.float32))
    records = [image | {"sem_seg_file_name": str(mask), "depth_file_name": str(depth)}]
    assert look_at(records, PHOTOGRAPHS) == (1, [], [])
    for file in (mask, depth):
        data = file.read_bytes()
        file.write_bytes(data[: len(data) - 30])
        assert file.name in refusal(look_at, records, None)
        file.write_bytes(data)


def test_in_finetuning_the_next_record_stands_in_for_an_unreadable_one(tmp_path, caplog):
    records = folder_of(tmp_path, 2, bad=b"")
    dataset = MappedRecords(
        records, lambda record: {"name": record["file_name"], "sum": read_record(record, PHOTOGRAPHS).sum()}, 0
    )
    assert [dataset[0, n]["name"][-7:] for n in (0, 1, 2)] == ["000.jpg", "001.jpg", "000.jpg"]
    assert "replaced by its neighbour" in caplog.text and f"{tmp_path}/bad.jpg" in caplog.text


def yolo_of(root: Path, count: int) -> str:
    for n in range(count):
        write(root / f"labels/{n:03d}.txt", "0 0.5 0.5 0.5 0.5")
    write(root / "labels/classes.txt", "cat")
    return f"yolo:{root}/photos:{root}/labels"


def voc_of(root: Path, count: int) -> str:
    box = "<xmin>2</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax>"
    for n in range(count):
        thing = f"<object><name>cat</name><bndbox>{box}</bndbox></object>"
        write(root / f"labels/{n:03d}.xml", f"<annotation>{thing}</annotation>")
    return f"voc_xml:{root}/photos:{root}/labels"


def coco_of(root: Path, count: int, **size: int) -> str:
    content = {
        "images": [{"id": n, "file_name": f"{n:03d}.jpg", **size} for n in range(count)],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"id": n + 1, "image_id": n, "category_id": 1, "bbox": [2, 2, 7, 7]} for n in range(count)],
    }
    write(root / "coco.json", json.dumps(content))
    return f"coco:{root}/photos:{root}/coco.json"


SIZE = dict(zip(("width", "height"), Image.open(io.BytesIO(WHOLE)).size, strict=True))


@pytest.mark.parametrize("labels_of", [yolo_of, voc_of, coco_of, partial(coco_of, **SIZE)])
def test_boxes_are_learned_where_one_percent_of_their_images_cannot_be_read(tmp_path, labels_of):
    folder_of(tmp_path / "photos", 103)
    own = {"DATASETS.TRAIN": f"('{labels_of(tmp_path, 103)}',)", "MODEL.ROI_HEADS.NUM_CLASSES": 1}
    for damaged in (b"", b"<html>not found</html>", WHOLE[30:]):
        write(tmp_path / "photos/050.jpg", damaged)
        cfg = make_config("own_images/detection.yaml", [str(word) for pair in own.items() for word in pair])
        warning = next(text for _, text in logged(inspect_training, cfg) if "stand in" in text)
        assert "103 of 103 images looked at, 1 cannot be read" in warning and "050.jpg" in warning
    write(tmp_path / "photos/051.jpg")
    assert "2 cannot be read" in refusal(inspect_training, cfg) and "at most 1%" in refusal(inspect_training, cfg)


def test_test_images_that_are_learned_from_are_warned_of(write_pictures, tmp_path, caplog):
    train, test = write_pictures(tmp_path / "train", 4), write_pictures(tmp_path / "test", 3, size=(40, 30))
    write(tmp_path / "test/copy.png", train[0].read_bytes())
    for folder in ("train", "test"):
        images = [
            {"id": n, "file_name": path.name, "height": 30, "width": 40}
            for n, path in enumerate(sorted((tmp_path / folder).iterdir()))
        ]
        boxes = [{"id": n + 1, "image_id": n, "category_id": 1, "bbox": [1, 1, 9, 9], "iscrowd": 0} for n in range(3)]
        content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
        write(tmp_path / f"{folder}.json", json.dumps(content).encode())
    names = [f"coco:{tmp_path}/{folder}:{tmp_path}/{folder}.json" for folder in ("train", "test")]
    cfg = make_config("configs/own_images/detection.yaml", [])
    cfg.DATASETS.TRAIN = (names[0],)
    for tested, expected in ((names[1], "1 of 4 images"), (names[0], "4 of 4 images")):
        caplog.clear()
        register(tested)
        cfg.DATASETS.TEST = ()
        learned = get_records(names[0])
        leaks(cfg, names[0], learned, to_learn=True)
        assert caplog.text == ""
        cfg.DATASETS.TEST = (tested,)
        leaks(cfg, names[0], learned, to_learn=False)
        assert caplog.text == ""
        leaks(cfg, names[0], learned, to_learn=True)
        assert expected in caplog.text and "expected others" in caplog.text
    assert len(test) == 3


def scene(number: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """A picture of smooth shapes, another one for each number."""
    cells = np.random.default_rng(number).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC)


SAVED_AGAIN = {
    "as it is": lambda image: image,
    "smaller": lambda image: image.resize((100, 75)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "without a border": lambda image: image.crop((2, 2, 318, 238)),
}


def test_images_that_are_saved_again_are_alike_and_others_are_not(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(12)]
    for number, path in enumerate(paths):
        scene(number, (640, 480) if number % 2 else (64, 48)).save(path)
    (tmp_path / "no image.jpg").write_bytes(b"no image")
    learned = [{"file_name": str(path)} for path in (*paths, tmp_path / "no image.jpg")]
    unlike = [{"image": np.array(scene(number))} for number in range(100, 130)]
    unlike += [{"image": np.full((40, 40, 3), value, np.uint8)} for value in (0, 128)]
    unlike += [{"file_name": str(tmp_path / "no image.jpg")}]
    assert alike_images(learned, unlike, PHOTOGRAPHS) == ([], 33)
    for number, change in enumerate(SAVED_AGAIN.values()):
        change(scene(number)).save(tmp_path / f"copy{number}.jpg", quality=60)
    copies = [{"file_name": str(path)} for path in sorted(tmp_path.glob("copy*.jpg"))]
    assert alike_images(learned, [*copies, *unlike], PHOTOGRAPHS) == (list(zip(copies, learned, strict=False)), 37)


def test_test_images_that_are_saved_again_are_warned_of(tmp_path, monkeypatch, caplog):
    for number in range(3):
        scene(number).save(tmp_path / f"{number}.png")
        scene(number if number else 9).save(tmp_path / f"test{number}.jpg", quality=70)
    learned, tested = (
        [{"file_name": str(path)} for path in sorted(tmp_path.glob(glob))] for glob in ("?.png", "*.jpg")
    )
    monkeypatch.setattr(leaks_module, "get_records", lambda name: tested)
    cfg = make_config("configs/own_images/detection.yaml", ["DATASETS.TEST", ("mine",)])
    leaks(cfg, "photos", learned, to_learn=True)
    (line,) = [record.message for record in caplog.records]
    assert (
        line.startswith("2 of 3 images of mine nearly equal one of DATASETS.TRAIN photos") and "curate --test" in line
    )
    assert line.endswith(f"({tmp_path}/test1.jpg like {tmp_path}/1.png, {tmp_path}/test2.jpg like {tmp_path}/2.png)")


def test_test_images_that_are_learned_from_are_named_with_what_they_equal(tmp_path, monkeypatch, caplog):
    for number in range(8):
        scene(number).save(tmp_path / f"{number}.png")
    (tmp_path / "again.png").write_bytes((tmp_path / "5.png").read_bytes())
    learned = [{"file_name": f"{tmp_path}/{number}.png"} for number in range(8)]
    tested = [*learned[:1], {"file_name": f"{tmp_path}/again.png"}]
    monkeypatch.setattr(leaks_module, "get_records", lambda name: tested)
    cfg = make_config("configs/own_images/detection.yaml", ["DATASETS.TEST", ("mine",)])
    leaks(cfg, "photos", learned, to_learn=True)
    (line,) = [record.message for record in caplog.records]  # they are no copies that were saved again
    assert line.endswith(f" expected others ({tmp_path}/0.png, {tmp_path}/again.png like {tmp_path}/5.png)")
    monkeypatch.setattr(leaks_module, "get_records", lambda name: learned)
    leaks(cfg, "photos", learned, to_learn=True)
    assert caplog.records[-1].message.endswith(f"{tmp_path}/3.png, {tmp_path}/4.png and others)")


def frames(folder: Path, count: int, *, moving: bool = True) -> list[dict]:
    """Of a video, in which a scene moves by 4 px a frame; else any photographs, with names as a camera gives them."""
    wide = scene(7, (200 + 4 * count, 150))
    for n in range(count):
        image = wide.crop((4 * n, 0, 4 * n + 200, 150)) if moving else scene(n)
        image.save(folder / f"clip_{n:04d}.png")
    return [{"file_name": str(folder / f"clip_{n:04d}.png")} for n in range(count)]


def test_frames_of_one_video_in_both_sets_are_warned_of_and_numbered_photographs_are_not(tmp_path):
    for name in ("video", "photos", "clips"):
        (tmp_path / name).mkdir()
    film = frames(tmp_path / "video", 60)
    (line,) = (text for _, text in logged(warn_of_torn, *apart(film, 5), PHOTOGRAPHS))
    which = "12 of 12 images of mine are frames next to those of DATASETS.TRAIN a, such as "
    assert line.startswith(which) and "revisit split keeps together" in line
    assert "such as clip_0000.png and clip_0001.png: " in line
    photos = frames(tmp_path / "photos", 60, moving=False)
    assert logged(warn_of_torn, *apart(photos, 5), PHOTOGRAPHS) == []
    halves = (film[:30], "DATASETS.TRAIN a", film[34:], "mine")
    assert logged(warn_of_torn, *halves, PHOTOGRAPHS) == []


def apart(records: list[dict], step: int) -> tuple[list[dict], str, list[dict], str]:
    """Each step-th one to be tested, the others to be learned from."""
    tested = records[::step]
    return [record for record in records if record not in tested], "DATASETS.TRAIN a", tested, "mine"


def test_windows_of_one_file_in_both_sets_are_warned_of(tmp_path):
    def windows(*numbers: int) -> list[dict]:
        return [{"file_name": f"{tmp_path}/scan{n % 2}.tif", WINDOW: (n, 0, n + 9, 9)} for n in numbers]

    learned = windows(0, 2, 4, 6)
    (line,) = (
        text for _, text in logged(warn_of_torn, learned, "DATASETS.TRAIN a", windows(8, 9, 10), "b", PHOTOGRAPHS)
    )
    assert line.startswith("2 of 3 images of b are parts of files of DATASETS.TRAIN a, too: ")
    assert logged(warn_of_torn, learned, "DATASETS.TRAIN a", windows(0, 1, 2), "b", PHOTOGRAPHS) == []
    shards = [{"file_name": "a.tar", "offset": n, "size": 9} for n in range(4)]
    assert logged(warn_of_torn, shards[:2], "DATASETS.TRAIN a", shards[2:], "b", PHOTOGRAPHS) == []


def test_copies_in_a_sample_are_warned_of_however_many_images_are_shared_out_of_it(monkeypatch, caplog):
    """Of 2,000 test images 100 are shared, none of them in the sample, and 20 in the sample are copies."""
    images = np.random.default_rng(0).integers(0, 256, (2000, 24, 24, 3), dtype=np.uint8)
    sampled = sample(range(2000))
    others = sorted(set(range(2000)) - set(sampled))[:100]
    learned = [{"image": images[number].copy()} for number in (*sampled[:20], *others)]
    images[sampled[:20]] //= 2
    tested = [{"image": image} for image in images]
    monkeypatch.setattr(leaks_module, "get_records", lambda name: tested)
    cfg = make_config("configs/own_images/detection.yaml", ["DATASETS.TEST", ("mine",)])
    leaks(cfg, "photos", learned, to_learn=True)
    shared, alike = (record.message for record in caplog.records)
    assert shared.startswith("100 of 2,000 images of mine are in DATASETS.TRAIN photos")
    assert alike.startswith("20 of 1,000 images of mine nearly equal")
