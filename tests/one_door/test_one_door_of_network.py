"""A network with its pixels, what weights ask for, and digests of files have one door."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from test_house import nodes_of, trees


def nodes(kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    """Of the core and of projects, with their files."""
    for path, tree in trees().items():
        if path.parts[0] in ("revisit", "projects"):
            yield from ((path, node) for node in nodes_of(tree) if isinstance(node, kind))


def test_pixels_are_normalised_by_the_network_alone():
    """But the base of our meta-architectures normalises its own batch, on its own device, as Detectron2's do."""
    divided = [
        str(path)
        for path, node in nodes(ast.BinOp)
        if isinstance(node.op, ast.Div) and isinstance(node.left, ast.BinOp) and is_less_a_mean(node.left)
    ]
    assert sorted(divided) == [
        "projects/FrozenEvaluations/while_pretraining.py",  # rows of features, as the next
        "projects/Rows/leave_image_out.py",
        "revisit/modeling/sees_pixels.py",
        "revisit/network/network.py",
    ]


def is_less_a_mean(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.Sub) and "mean" in ast.unparse(node.right).lower()


def test_what_weights_describe_is_built_with_its_pixels_alone():
    """Elsewhere a network is built on the meta device, to see its tensors or its maps."""
    built = [f"{path}: {ast.unparse(node)}" for path, node in nodes(ast.Call) if is_build(node)]
    assert sorted(built) == [
        "revisit/checkpoint/convert.py: description.build(cfg)",
        "revisit/checkpoint/stem.py: description.build(with_values(cfg, {'MODEL.PIXEL_MEAN': [0.0] * count}))",
        "revisit/network/network.py: weights.description.build(flags_to_config(weights.flags))",
        "revisit/network/network_maps.py: backbone.description.build(flags_to_config(backbone.flags))",
    ]


def is_build(node: ast.Call) -> bool:
    return ast.unparse(node.func).endswith("description.build")


def test_what_weights_ask_of_a_config_is_said_in_one_place():
    """But for the advice in a message, what a config is refused with."""
    asked = [
        f"{path}: {ast.unparse(node.func)}"
        for path, node in nodes(ast.Call)
        if re.search(r"\b(keys_to_build|network_flags|family_of)$", ast.unparse(node.func))
    ]
    assert sorted(asked) == [
        "revisit/checkpoint/flags.py: family_of",  # of network_flags
        "revisit/checkpoint/flags.py: family_of",
        "revisit/checkpoint/flags.py: theirs.keys_to_build",
        "revisit/checkpoint/start.py: family.keys_to_build",
        "revisit/checkpoint/start.py: family_of",
        "revisit/checkpoint/start.py: family_of",
        "revisit/checkpoint/start.py: network_flags",
    ]


def test_a_digest_of_tensors_and_one_of_a_file_are_made_in_one_place():
    """But what is copied piece by piece is digested on the way."""
    calls = [(str(path), ast.unparse(node)) for path, node in nodes(ast.Call)]
    assert {path for path, call in calls if "file_digest(content" in call} == {"revisit/files.py"}
    assert not [place for place in calls if re.match(r"hashlib\..*read_bytes", place[1])]
    assert {path for path, call in calls if re.match(r"digest\.update.*torch\.uint8", call)} == {
        "revisit/network/network.py"
    }
