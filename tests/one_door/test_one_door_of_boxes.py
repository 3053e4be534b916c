"""Boxes of images have one door."""

import ast
import re
from functools import cache

from test_house import imported_names, nodes_of, trees


def product() -> dict[str, ast.Module]:
    """The syntax of core and projects, by file."""
    return {str(path): tree for path, tree in trees().items() if path.parts[0] in ("revisit", "projects")}


@cache
def code() -> dict[str, str]:
    """Of core and projects, by file, without comments."""
    return {path: ast.unparse(tree) for path, tree in product().items()}


def files_that_say(pattern: str) -> set[str]:
    """Whose code has a regular expression."""
    return {path for path, text in code().items() if re.search(pattern, text)}


def test_boxes_of_an_image_have_one_class():
    """A Prediction is a row for users of the API: one box with words. What windows Found knows where each was seen."""
    classes = [
        f"{path}: {node.name}"
        for path, tree in product().items()
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef) and are_boxes_with_scores(node)
    ]
    known = ["projects/Tiles/merging.py: Found", "revisit/api.py: Prediction", "revisit/boxes/boxes.py: Boxes"]
    assert sorted(classes) == known


def are_boxes_with_scores(node: ast.ClassDef) -> bool:
    fields = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
    return bool(fields & {"box", "boxes", "bbox", "xyxy", "corners"} and fields & {"score", "scores"})


def test_corners_and_sides_are_converted_in_one_module():
    """By arithmetic on arrays elsewhere only where torch draws boxes, and what OpenCV gives as sides."""
    by_arrays = r"\[(?:\.\.\.|:), 2:\] (?:[-+]=?) \w+\[(?:\.\.\.|:), :2\]"
    by_numbers = r"\bx1 - x0, y1 - y0|\bx \+ w\w*, y \+ h"
    known = {"projects/CompareStarts/probe.py", "projects/ToyScenes/scene.py"}
    assert files_that_say(f"{by_arrays}|{by_numbers}") - known == {"revisit/boxes/boxes.py"}
    assert files_that_say(r"BoxMode\.convert\(") == {"revisit/boxes/boxes.py"}


def test_overlaps_of_boxes_and_their_matches_are_computed_in_one_module():
    """Crops of a pretraining overlap in pairs, of their own kind."""
    names = {path: {name.rpartition(".")[2] for name in imported_names(tree)} for path, tree in product().items()}
    assert [path for path, imported in names.items() if imported & {"box_iou", "pairwise_iou"}] == []
    assert files_that_say(r"\b(?:run_lengths|mask|maskUtils)\.iou\(") == {"revisit/boxes/boxes.py"}
    assert files_that_say(r"def \w*(?:greedy|matched)\b") == {"revisit/boxes/boxes.py"}


def test_coco_evaluates_in_one_module():
    names = {path: set(imported_names(tree)) for path, tree in product().items()}
    by_coco = [path for path, imported in names.items() if "pycocotools.cocoeval.COCOeval" in imported]
    assert by_coco == ["revisit/evaluation/box_evaluators.py"]
    calls = re.findall(r"(?<!class )\b(?:COCOeval|_Evaluation|_OfMany)\(", ast.unparse(product()[by_coco[0]]))
    assert len(calls) == 1
    assert files_that_say(r"\bhotcoco\.COCOeval\(") == {"revisit/evaluation/fast_coco.py"}


def test_files_of_results_are_read_in_one_module():
    """Truth is another kind of file; boxes to pretrain on have no classes and may lack scores."""
    others = {"revisit/data/sources/coco_truth.py", "projects/Objectives/proposals.py"}
    readers = files_that_say(r"\bread_json\(|\bjson\.loads?\(") & files_that_say(r"\['(?:image_id|bbox)'\]")
    assert readers - others == {"revisit/boxes/predictions_file.py"}
