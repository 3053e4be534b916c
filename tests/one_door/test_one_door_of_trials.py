"""A trial of CompareStarts has one door."""

import ast

from test_house import nodes_of, trees


def test_the_parts_of_a_trial_travel_together():
    """A task with one of its starts and a seed is a ``Trial``, whose methods are what is done with it."""
    separate = []
    for path, tree in trees().items():
        for node in nodes_of(tree):
            if path.is_relative_to("projects/CompareStarts") and isinstance(node, ast.FunctionDef):
                arguments = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
                if {"task", "start", "seed"} <= arguments:
                    separate.append(f"{path}: {node.name}")
    assert separate == []
