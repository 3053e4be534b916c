"""Contracts have one door: what a meta-architecture answers, what plugs in, whose classes a data set counts by."""

import ast
import re
from collections.abc import Iterator

from test_house import nodes_of, trees

from revisit.keys.architectures import Architecture, with_answers

from detectron2.modeling import GeneralizedRCNN


def names_of_text(node: ast.AST) -> Iterator[str]:
    """What getattr and hasattr ask for by a text."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
        yield from (argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant))


def test_what_a_meta_architecture_answers_has_its_default_in_the_base_class():
    answers = {name for name in vars(Architecture) if not name.startswith("_")}
    assert {"around", "also_reads", "unread", "continues", "training_only", "evaluated"} <= answers
    asked = [
        f"{path}: {name}" for path, tree in trees().items() for node in nodes_of(tree) for name in names_of_text(node)
    ]
    assert asked and [line for line in asked if line.partition(": ")[2] in answers] == []


def test_a_meta_architecture_of_others_answers_by_the_defaults():
    class Around(GeneralizedRCNN):
        around = "MINE.DETECTOR"

    assert with_answers(GeneralizedRCNN).training_only == () and with_answers(len) is Architecture
    assert with_answers(Around).around == "MINE.DETECTOR" and issubclass(with_answers(Around), GeneralizedRCNN)


def test_what_plugs_in_is_an_entry_of_a_registry():
    """No function ``register_...`` keeps it in a list or a dict of its module."""
    kept, doors = [], 0
    for path, tree in trees().items():
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        literals = [node for node in assigned if isinstance(node.value, ast.List | ast.Dict | ast.Set)]
        own = {ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]) for node in literals}
        for door in nodes_of(tree):
            if isinstance(door, ast.FunctionDef) and door.name.startswith("register"):
                doors += 1
                named = {node.id for node in ast.walk(door) if isinstance(node, ast.Name)}
                kept += [f"{path}: {door.name} {name}" for name in sorted(named & own)]
    assert doors > 3 and kept == []


def test_whose_classes_a_data_set_counts_by_is_known_to_that_data_set_alone():
    """Detectron2's metadata of classes change in ``DataSet``, and no module keeps them by name."""
    core = {path: tree for path, tree in trees().items() if path.parts[0] == "revisit"}
    by_name = [
        f"{path}: {ast.unparse(node.target)}"
        for path, tree in core.items()
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and re.search("ClassOrder|LabelledSet", ast.unparse(node.annotation))
    ]
    assert by_name == []
    writers = {str(path) for path, tree in trees().items() if "vars(MetadataCatalog.get(" in ast.unparse(tree)}
    reads_alone = {"revisit/data/sources/class_names.py", "projects/CompareStarts/labelled_parts.py"}
    of_truth = "revisit/evaluation/box_evaluators.py"  # the file of a data set, not its classes
    assert writers - reads_alone == {"revisit/data/sources/catalog.py", of_truth}


def test_what_follows_from_the_number_of_images_is_decided_in_one_place():
    """``decide_by_images``, also for an estimate of a job's length."""
    callers = {
        str(path)
        for path, tree in trees().items()
        for node in nodes_of(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "inspect_training"
    }
    assert callers == {"revisit/engine/data_checks.py"}
