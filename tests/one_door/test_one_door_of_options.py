"""Each thing has one door: a second copy cannot come back silently."""

import ast

from test_house import nodes_of, trees


def test_words_key_value_end_a_command_in_one_way():
    """By the word ``opts`` of the vocabulary: no other REMAINDER, and no option of this name."""
    texts = {str(path): ast.unparse(tree) for path, tree in trees().items()}
    assert [path for path, text in texts.items() if "REMAINDER" in text] == ["revisit/command/options.py"]
    assert [path for path, text in texts.items() if "'--opts'" in text] == ["revisit/command/options.py"]


def test_words_key_value_are_paired_in_one_place():
    """``pairs_of``. What a file of others states is looked through before it is one of these, and timm's options are
    no keys."""
    others = {"projects/Paper/published.py", "projects/Weights/timm_networks.py"}
    pairing = {
        str(path)
        for path, tree in trees().items()
        for call in nodes_of(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("zip") and "1::2]" in ast.unparse(call)
    }
    assert pairing - others == {"revisit/engine/command.py"}
    keys = {path for path, tree in trees().items() if "opts[::2]" in ast.unparse(tree)}
    assert keys == set()
