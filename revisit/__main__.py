"""The command ``revisit``: every tool of the checkout as a verb, the same code."""

import ast
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from revisit.compat.moved import EVALUATIONS, warn_of_moved
from revisit.errors import did_you_mean
from revisit.plugins import PACKAGES, PROJECTS, find_file

TOOLS = {
    "train": "tools/train_net.py",
    "convert": "tools/convert_to_d2.py",
    "predict": "tools/predict.py",
    "discover": "tools/discover.py",
    "self-label": "tools/self_label.py",
    "embed": "tools/embed.py",
    "similar": "tools/similar.py",
    "atlas": "tools/atlas.py",
    "check-labels": "tools/check_labels.py",
    "split": "tools/split.py",
    "propagate": "tools/propagate.py",
    "curate": "tools/curate.py",
    "select": "tools/select_images.py",
    "visualize": "tools/visualize.py",
    "export": "tools/export_model.py",
    "benchmark": "tools/benchmark.py",
    "export-weights": "tools/export_weights.py",
    "push": "tools/push.py",
    "pull": "tools/pull.py",
    "compare-starts": "tools/compare_starts.py",
    "report": "tools/report.py",
    "reproduce": "tools/reproduce.py",
    "verify": "tools/verify.py",
    "demo": "tools/demo.py",
    "toy-scenes": "projects/ToyScenes/make_toy_scenes.py",
    "shards": "tools/make_shards.py",
    "tiles": "tools/tiles.py",
    "slurm": "tools/slurm.py",
    "doctor": "tools/doctor.py",
    "install-detectron2": "tools/install_detectron2.py",
}


def main() -> None:
    """Run a tool, as ``python tools/X.py`` does."""
    verb, *words = sys.argv[1:] or ["--help"]
    studies = _studies()
    if verb == "study" and words and (words[0] in studies or words[0] in EVALUATIONS):
        name = words[0] if words[0] in studies else Path(EVALUATIONS[words[0]]).stem
        if name != words[0]:
            warn_of_moved(f"revisit study {words[0]}", f"revisit study {name}")
        verb = f"study {name}"
        script = studies[name]
        words = words[1:]
    elif verb in TOOLS:
        script = find_file(TOOLS[verb])
    else:
        if verb not in ("-h", "--help", "study") or words:
            print(_overview(studies), _no_verb(verb, words, studies), sep="\n\n", file=sys.stderr)
            sys.exit(2)
        print(_overview(studies))
        return
    sys.argv = [f"revisit {verb}", *words]
    # Not by runpy, which would call the program by its file in every usage.
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = script
    exec(compile(_as_typed(Path(script).read_text()), script, "exec"), vars(module))


def _no_verb(verb: str, words: list[str], studies: Mapping[str, str]) -> str:
    asked = " ".join((verb, *words))
    verbs = [*TOOLS, *(f"study {name}" for name in studies)]
    close = did_you_mean(asked if verb == "study" else verb, verbs)
    return f"error: no verb {asked}: expected one of these{close}"


def _studies() -> dict[str, str]:
    """The scripts of evaluations by their names: a project's NAME.py that has recipes in configs/NAME."""
    recipes = sorted(PROJECTS.glob("*/configs/*/"))
    return {folder.name: str(folder.parents[1] / f"{folder.name}.py") for folder in recipes}


def _as_typed(source: str) -> str:
    """A script whose ``--help`` says ``revisit VERB`` for the files that a checkout has."""
    for verb, script in TOOLS.items():
        source = source.replace(f"python {script}", f"revisit {verb}")
    for name, script in _studies().items():
        place = Path(script).relative_to(PROJECTS.parent)
        source = source.replace(f"python {place}", f"revisit study {name}")
    return source


def _overview(studies: dict[str, str]) -> str:
    lines = [f"  {verb:20}{_title(find_file(script))}" for verb, script in TOOLS.items()]
    studied = [f"  study {name:22}{_title(script)}" for name, script in studies.items()]
    usage = "usage: revisit VERB ...        revisit VERB --help says what a verb takes"
    return "\n".join([usage, "", *lines, "", *studied])


def _title(script: str) -> str:
    """The first line of a script's docstring."""
    return (ast.get_docstring(ast.parse(Path(script).read_text())) or "").partition("\n")[0]


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd() != str(PACKAGES):
        del sys.path[0]  # by python -m; a folder from elsewhere may have files of a library's name
    main()
