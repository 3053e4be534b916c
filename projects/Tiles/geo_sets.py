"""``geo:SCANS:LABELS.gpkg``: shapes on a map as labels of the rasters that they lie in, in any CRS."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projects.Tiles.cutting import KEPT_SHARE, polygons, rings_of
from projects.Tiles.geo import Place, geo_package, place_of, reprojected
from projects.Tiles.map_labels import Shapes, read_shapes
from projects.Tiles.scan_files import load_scans
from projects.Tiles.window_files import look_at
from revisit.data.finetuning.ignored import IGNORED
from revisit.data.images.image_bytes import Size
from revisit.data.sources.coco_boxes import COCO_METADATA
from revisit.data.sources.coco_truth import MIN_SIDE
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import WITHOUT_LABELS
from revisit.errors import expect

from detectron2.structures import BoxMode
from detectron2.utils.logger import log_first_n

CLASS_COLUMNS = ("class", "label", "name", "category", "species", "type")  # in any case; the first that is there
OBJECT = "object"  # the class where there is no such column


class _Objects(NamedTuple):
    """Polygons with a class, in one CRS."""

    outlines: np.ndarray  # (N,) shapely's; None of what another CRS does not have
    classes: np.ndarray  # (N,) names
    crs: str

    def within(self, crs: str) -> "_Objects":
        """The same in another CRS."""
        shapely = geo_package("shapely")
        moved = reprojected(self.outlines, self.crs, crs)
        is_there = np.isfinite(shapely.bounds(moved)).all(axis=1)
        return self._replace(outlines=np.where(is_there, moved, None), crs=crs)


def load_geo(scans: Path, labels: Path) -> LabelledSet:
    """Every image below ``scans`` that has coordinates, with what of the polygons of a file lies in it.

    Of an object that has less than KEPT_SHARE of its area there, nothing is learned, nor is it wrong to find it. An
    image without any counts as one without labels.

    Raises:
        UserError: see read_shapes; no image with coordinates, or no polygon in any image; a CRS that nothing leads to.
    """
    objects, notes = _objects(read_shapes(labels), labels)
    images = [record["file_name"] for record in load_scans(scans)]
    placed = {file: place for file in images if (place := place_of(file))}
    expect(placed, f"no image below {scans} has coordinates with a CRS: expected GeoTIFFs, say, for labels of {labels}")
    names = sorted(set(objects.classes))
    annotations = _annotations_of(placed, objects, names)
    records = [_record(file, number, of_image) for number, (file, of_image) in enumerate(annotations.items())]
    total, seen = len(objects.outlines), len(set().union(*annotations.values()))
    expect(seen, f"none of {total:,} polygons of {labels} lies in an image below {scans}: expected those of its place")
    without = len(images) - len(placed)
    notes += [f"{without:,} of {len(images):,} images below {scans} have no coordinates"] * (without > 0)
    notes += [f"{total - seen:,} of {total:,} polygons of {labels} lie in no image"] * (seen < total)
    for line in notes:
        log_first_n(logging.INFO, line, name=__name__, key="message")
    return LabelledSet(records, {"thing_classes": names})


def _record(file: str, number: int, annotations: dict[int, dict]) -> dict:
    height, width, _ = look_at(file)
    record = {"file_name": file, "image_id": number, "height": height, "width": width}
    record["annotations"] = list(annotations.values())
    return record if annotations else record | {WITHOUT_LABELS: True}


def _annotations_of(placed: dict[str, Place], objects: _Objects, names: Sequence[str]) -> dict[str, dict[int, dict]]:
    """Of each image, in px, by which of the objects they are."""
    shapely, found = geo_package("shapely"), {}
    in_crs = {crs: objects.within(crs) for crs in {place.crs for place in placed.values()}}
    trees = {crs: shapely.STRtree(moved.outlines) for crs, moved in in_crs.items()}
    for file, place in placed.items():
        height, width, _ = look_at(file)
        corners = np.array([(0.0, 0.0), (width, 0), (width, height), (0, height)])
        places = trees[place.crs].query(shapely.Polygon(place.on_map(corners)), predicate="intersects")
        found[file] = _annotations(in_crs[place.crs], np.sort(places), names, place, (height, width))
    return found


def _objects(shapes: Shapes, labels: Path) -> tuple[_Objects, list[str]]:
    """Those of a file, and words for where the classes are from and what is left out."""
    shapely, total = geo_package("shapely"), len(shapes.outlines)
    by_name = {column.lower(): column for column in reversed(shapes.columns)}
    column = next((by_name[name] for name in CLASS_COLUMNS if name in by_name), None)
    classes = np.array([_name(value) for value in shapes.columns[column]] if column else [OBJECT] * total, object)
    where = f"the column {column}" if column else f"{OBJECT}, for it has no column {', '.join(CLASS_COLUMNS)}"
    is_polygon = np.isin(shapely.get_type_id(shapes.outlines), (3, 6)) & ~shapely.is_empty(shapes.outlines)
    has_class = classes != ""
    lacking = {"are no polygons": ~is_polygon, "have no class": is_polygon & ~has_class}
    notes = [f"classes of {labels} are {where}"]
    notes += [f"{some.sum():,} of {total:,} shapes of {labels} {what}" for what, some in lacking.items() if some.any()]
    kept = is_polygon & has_class
    expect(kept.any(), f"{labels} has no polygon with a class among {total:,} shapes; {'; '.join(notes)}")
    return _Objects(shapely.make_valid(shapes.outlines[kept]), classes[kept], shapes.crs), notes


def _name(value: Any) -> str:
    """A class; "" of none. Whole numbers next to missing ones are read as 3.0."""
    if value is None or value != value:
        return ""
    is_fraction = isinstance(value, float | np.floating)
    return np.format_float_positional(value, trim="-") if is_fraction else str(value).strip()


def _annotations(
    objects: _Objects, places: np.ndarray, names: Sequence[str], place: Place, size: Size
) -> dict[int, dict]:
    """Detectron2's annotations in an image of (height, width) px, by which of the objects they are."""
    shapely = geo_package("shapely")
    outlines = shapely.transform(objects.outlines[places], place.in_pixels)
    parts = shapely.intersection(outlines, shapely.box(0, 0, size[1], size[0]))
    are_objects = shapely.area(parts) >= KEPT_SHARE * shapely.area(outlines)
    annotations = {}
    for number, part, is_object in zip(places.tolist(), parts, are_objects, strict=True):
        left, top, right, bottom = shapely.total_bounds(polygons(part))
        if min(right - left, bottom - top) >= MIN_SIDE:  # of what has no polygon NaN is not
            made = {"bbox": [left, top, right, bottom], "bbox_mode": BoxMode.XYXY_ABS}
            made["segmentation"] = [ring.tolist() for ring in rings_of(part)]
            made |= {"iscrowd": 0} if is_object else {"iscrowd": 1, IGNORED: True}
            annotations[number] = made | {"category_id": names.index(objects.classes[number])}
    return annotations


LABEL_LAYOUT_REGISTRY.register(LabelLayout("geo", "SCANS:FILE", load_geo, COCO_METADATA))
