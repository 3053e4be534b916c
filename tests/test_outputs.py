"""Every place that a command writes to is one type: a URL is refused in one line, by name, and nothing is written."""

import ast
from pathlib import Path

import pytest
from commands import ROOT, one_line_error
from test_house import trees
from trees import refused

from revisit.api import pretrain
from revisit.command.options import WORDS
from revisit.engine.setup import make_config
from revisit.files import make_folder, output_path

# Arguments of type Path that are read; every other place in a command line is an output.
INPUTS = {"folders", "path", "--list", "--sbd", "--boxes", "--others", "run", "--names", "--table", "--data"}
INPUTS |= {"--embeddings", "--groups", "--truth", "--test", "--suspects"}
TYPES = ("output_path", "place_of")  # place_of: a folder, or a store that can be written to
# Those of these types, by the script that has them; one more fails this test until it is listed here.
OUTPUTS = {
    "tools/compare_starts.py": ["--output"], "tools/convert_to_d2.py": ["output"], "tools/demo.py": ["--output"],
    "tools/discover.py": ["--output"],
    "tools/self_label.py": ["--output"],
    "tools/atlas.py": ["--output"], "tools/curate.py": ["--output"], "tools/embed.py": ["--output"],
    "tools/select_images.py": ["--output"], "tools/similar.py": ["--output"],
    "tools/check_labels.py": ["--output"], "studies/label_check/spoil_labels.py": ["--output", "--accepted"],
    "studies/groups/make_tinted.py": ["--output"], "studies/curation/make_copies.py": ["--output"],
    "tools/benchmark.py": ["--output"],
    "tools/export_model.py": ["--output"], "tools/export_weights.py": ["output"], "tools/make_shards.py": ["--output"],
    "tools/predict.py": ["--output"], "tools/propagate.py": ["--output"], "tools/pull.py": ["output"],
    "tools/report.py": ["--output"],
    "tools/reproduce.py": ["--output"],
    "tools/slurm.py": ["--output"], "tools/split.py": ["--output"], "tools/tiles.py": ["--output"],
    "tools/visualize.py": ["--output"], "datasets/count_classes.py": ["--output"],
    "datasets/count_objects.py": ["--output"], "datasets/folder_arguments.py": ["NAME"],
    "studies/benchmarks/benchmark.py": ["--json"], "studies/benchmarks/check_gpu.py": ["--output"],
    "studies/benchmarks/peers.py": ["--output"], "studies/benchmarks/soak.py": ["--output"],
    "studies/compare_starts/rank_study.py": ["output"], "projects/Paper/snapshots.py": ["output"],
    "projects/Paper/training_time.py": ["--output"], "projects/ToyScenes/make_toy_scenes.py": ["--output"],
    "revisit/command/evaluation_options.py": ["--output"], "revisit/command/options.py": ["NAME"],
    "tools/verify.py": ["--output"],
    "studies/verify/timm_difference.py": ["--output"], "studies/channels/rgbd.py": ["--output"],
    "studies/tiles/split_scan.py": ["--output"],
    "studies/coco_start/convert.py": ["output"], "studies/coco_start/score.py": ["--output"],
    "studies/found_boxes/frequent_classes.py": ["--output"],
}  # fmt: skip
URLS = ["s3://bucket/run", "gs://b/x", "hdfs:///x", "file:///tmp/x", "https://host/x", "simplecache::s3://b/x"]
URLS += ["s3:/bucket/run", "host:/data/run", "user@host:/data/run", ""]  # what Path makes of the first; scp's


def arguments(tree: ast.Module) -> list[tuple[str, str]]:
    """Name and type of every argument of a command line in a source file."""
    found = []
    for call in ast.walk(tree):
        names = {"add", "add_argument"} if isinstance(call, ast.Call) else set()
        if names and call.args and (getattr(call.func, "id", "") or getattr(call.func, "attr", "")) in names:
            kind = "".join(ast.unparse(each.value) for each in call.keywords if each.arg == "type")
            words = [each.value for each in call.args if isinstance(each, ast.Constant)]
            if isinstance(call.args[0], ast.Name):  # of the vocabulary
                kinds = {word: getattr(WORDS[word].get("type"), "__name__", "") for word in words}
                found += [(f"--{word}", kind or kinds[word]) for word in words]
            else:
                found.append((words[0] if words else "NAME", kind))
    return found


def test_every_place_in_a_command_line_is_a_known_input_or_an_output():
    outputs = {}
    for path, tree in trees().items():
        places = [name for name, kind in arguments(tree) if kind in TYPES]
        places += ["NAME"] * ("'type': output_path" in ast.unparse(tree))
        outputs |= {str(path): places} if places else {}
        others = {name for name, kind in arguments(tree) if kind not in TYPES}
        assert not [name for name in others if name.strip("-") in ("output", "json", "log", "logs")], path
        assert {name for name, kind in arguments(tree) if kind == "Path"} <= INPUTS, path
    assert outputs == OUTPUTS


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_no_place_to_write_to(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("expected a folder or a file", output_path, url)
    refused("OUTPUT_DIR", make_config, f"{ROOT}/configs/toy/pretrain.yaml", ["OUTPUT_DIR", url])
    refused("expected a folder or a file", pretrain, "photos", url)
    (tmp_path / "recipe.yaml").write_text(f"OUTPUT_DIR: {url!r}\n")
    refused("OUTPUT_DIR", make_config, "recipe.yaml", [])
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_a_place_on_this_machine_is_taken_as_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(output_path("a:b/c d")) == "a:b/c d" and output_path("~/run") == tmp_path / "run"
    refused("--output s3:/bucket/run is not on this machine", make_folder, Path("s3://bucket/run"), "--output")


@pytest.mark.parametrize(
    "command",
    [
        "tools/report.py output/run --output s3://bucket/x.html",
        "tools/slurm.py --num-gpus 1 --output s3://bucket/x --dry-run -- --config-file x",
        "datasets/prepare_nyud.py --output s3://bucket/x",
        "projects/Paper/crops.py --config-file x --output s3://bucket/x",
    ],
)
def test_commands_refuse_it_in_one_line(command, tmp_path):
    assert "s3://bucket/x" in one_line_error(f"python {command}", tmp_path)
    assert not (ROOT / "s3:").exists()
