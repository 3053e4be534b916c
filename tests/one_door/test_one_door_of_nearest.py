"""One door for each thing: what would be a second one, by the syntax trees of core and projects."""

import ast
from collections.abc import Iterator

from test_house import imported_names, nodes_of, trees


def product() -> Iterator[tuple[str, ast.Module]]:
    """Files of core and projects, by their paths."""
    for path, tree in trees().items():
        if path.parts[0] in ("revisit", "projects"):
            yield str(path), tree


def test_nearest_neighbours_have_one_place():
    """Others of ``topk`` are no neighbours of features: the training's kernel, classes of an image, cells in reach."""
    known = {
        "revisit/evaluation/nearest.py",
        "revisit/modeling/losses/queue_scores.py",
        "projects/FrozenEvaluations/sgd.py",
        "projects/FrozenEvaluations/propagation.py",
    }
    chosen, named = set(), set()
    for path, tree in product():
        attributes = {node.attr for node in nodes_of(tree) if isinstance(node, ast.Attribute)}
        functions = {node.name for node in nodes_of(tree) if isinstance(node, ast.FunctionDef)}
        if attributes & {"topk", "argpartition", "kneighbors", "kthvalue"}:
            chosen.add(path)
        if functions & {"nearest", "neighbours", "neighbors", "nearest_others", "most_similar"}:
            named.add(path)
        assert not {name for name in imported_names(tree) if name.startswith("sklearn.neighbors")}, path
    assert chosen == known
    assert named == {"revisit/evaluation/nearest.py"}
