"""The paper's tables, read from paper_tables.yaml: rows with their backbones, columns with their evaluations, and the
data sets."""

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from revisit.checkpoint import RANDOM
from revisit.compat.moved import EVALUATIONS
from revisit.errors import expect
from revisit.files import file_digest, read_yaml
from revisit.plugins import TRAIN

Words = tuple[str, ...]  # of a command, or KEY VALUE pairs
PROFILES = ("paper", "toy")
RANDOM_INIT = "Rand. init."  # the paper's label
_CONTENT = read_yaml(Path(__file__).with_suffix(".yaml"))
_TABLES = _CONTENT["tables"]


@dataclass(frozen=True)
class PretrainingRun:
    """A run of tools/train_net.py."""

    config: str
    options: Words = ()  # KEY VALUE pairs that make it another run than the config's
    length: Words = ()  # those that say how long it is
    toy_data: Words = ()  # ToyScenes drawn for it alone: folder of images, arguments of make_toy_scenes.py

    @property
    def name(self) -> str:
        """The run's folder, the same in every table that has it."""
        config = self.config.removeprefix("configs/").removesuffix(".yaml")
        words = (config, *self.options, *self.toy_data[1:], *self.toy_data[:1])
        return "_".join(word.strip("-(),'").replace("/", "-") for word in words)

    @property
    def facts(self) -> Words:
        """What it depends on, besides its command and its data."""
        return ()


@dataclass(frozen=True)
class OthersWeights:
    """Somebody else's checkpoint, $DETECTRON2_DATASETS/weights/FILE, which tools/convert_to_d2.py reads."""

    file: str

    @property
    def name(self) -> str:
        return self.file.partition(".")[0]


def fact_of_file(path: Path) -> str:
    """What tells it from others of its name."""
    return f"{path.name}: sha256 {file_digest(path)}"


@dataclass(frozen=True)
class GivenBackbone:
    """A converted backbone of the user's; ``{seed}`` in its path stands for the seed. ``random`` is no pretraining."""

    path: str

    @property
    def name(self) -> str:
        """The folder of its evaluations: two files of one name have two."""
        place = Path(self.path).resolve()
        digest = hashlib.sha256(str(place).encode()).hexdigest()[:8]
        return "random_init" if self.path == RANDOM else f"{place.stem}-{digest}"

    def file(self, seed: int) -> Path | None:
        """Raises UserError where there is none."""
        if self.path == RANDOM:
            return None
        from revisit.checkpoint.named_weights import weights_file  # not at start-up: it takes a second

        path = weights_file(self.path.replace("{seed}", str(seed)), "backbone").resolve()
        expect(
            path.is_file(),
            f"{path} not found: expected what tools/convert_to_d2.py writes, or weights of a training that has ended",
        )
        return path

    def digest(self, seed: int) -> str:
        """What tells its weights from others of that name; "" of random ones."""
        path = self.file(seed)
        return fact_of_file(path) if path else ""


@dataclass(frozen=True)
class Snapshot:
    """The backbone of a run after ``part`` of ``parts`` equal parts of its training, but for the last."""

    run: PretrainingRun
    part: int
    parts: int

    @property
    def name(self) -> str:
        return f"{self.run.name}_{self.part}of{self.parts}"


FROZEN = ("cams", "linear", "propagation", "retrieval")  # scripts of projects/FrozenEvaluations
Source = PretrainingRun | OthersWeights | GivenBackbone | Snapshot
Row = dict[str, Source | None]  # by profile; None: it is what others published, or has no toy form


@dataclass(frozen=True)
class Evaluation:
    """One way to judge a backbone: tools/train_net.py finetunes, another script looks at frozen features."""

    program: str
    config: str
    score: Words  # where the number stands in the result
    options: Words = ()  # KEY VALUE pairs
    length: Words = ()  # those that say how long it trains
    folder: str = ""  # of its results; empty: that of the table's first column that is read from it

    @property
    def result(self) -> str:
        return "evaluation.json" if self.program == TRAIN else "results.json"


@dataclass(frozen=True)
class Column:
    """How a column is measured, by profile; ``toy_means`` says what the toy form asks instead."""

    paper: Evaluation | None
    toy: Evaluation | None
    digits: int = 1
    toy_means: str = ""


def without_seed(name: str) -> str:
    """``a`` of ``a_{seed}`` or ``a{seed}``: how a file for each seed is called."""
    return re.sub(r"(?<=[^/])[-_]?\{seed\}", "", name)


def given_rows(weights: list[str]) -> dict[str, Row]:
    """Rows of ``--weights``: ``random`` by the paper's label, files by their names, or by path where two have one."""
    stems = [without_seed(Path(path).stem) for path in weights]
    rows = {}
    for path, stem in zip(weights, stems, strict=True):
        label = RANDOM_INIT if path == RANDOM else path if stems.count(stem) > 1 else stem
        rows[label] = dict.fromkeys(PROFILES, GivenBackbone(path))
    return rows


def paper_values(table: str) -> dict[str, dict[str, float | None]]:
    """The values that the paper prints, by row and column; None where it prints none."""
    content = _TABLES[table]
    return {label: dict(zip(content["columns"], row["values"], strict=True)) for label, row in content["rows"].items()}


def columns_of(table: str, profile: str) -> list[str]:
    content = _TABLES[table]
    return [*content["columns"], *(content.get("toy_columns", ()) if profile == "toy" else ())]


def note_of(table: str) -> str:
    """What the paper's table was made with."""
    return _TABLES[table].get("note", "as printed")


def _words(text: str) -> Words:
    return tuple(shlex.split(text))


def _backbone(text: str) -> Source | None:
    """A backbone from its line in paper_tables.yaml."""
    if not text:
        return None
    first, *words = _words(text)
    if first == RANDOM:
        return GivenBackbone(first)
    if first.startswith("weights/"):
        return OthersWeights(first.removeprefix("weights/"))
    if first == "drawn":
        length = _words(_CONTENT["drawn_length"])
        return PretrainingRun("configs/toy/ablation/moco.yaml", length=length, toy_data=tuple(words))
    length = _words(_CONTENT["toy_length"]) if first.startswith("toy/") else ()
    return PretrainingRun(f"configs/{first}.yaml", tuple(words), length)


def _evaluation(text: str, score: str, length: str = "") -> Evaluation | None:
    """An evaluation from its line in paper_tables.yaml."""
    if not text:
        return None
    first, *words = _words(text)
    room, _, recipe = first.partition("/")
    kind = Path(EVALUATIONS.get(room, room)).stem  # files of others may have a name of version 0.1
    program, config = (
        study(f"FrozenEvaluations/{kind}/{recipe}") if kind in FROZEN else (TRAIN, f"configs/{first}.yaml")
    )
    return Evaluation(program, config, _words(score), tuple(words), _words(length))


def study(name: str) -> tuple[str, str]:
    """The script and the recipe of PROJECT/SCRIPT/RECIPE, as a checkout names them."""
    project, script, recipe = name.split("/")
    return f"projects/{project}/{script}.py", f"projects/{project}/configs/{script}/{recipe}.yaml"


def read_column(
    score: str, paper: str = "", toy: str = "", toy_score: str = "", toy_length: str = "", **facts: object
) -> Column:
    """A column from its entry in paper_tables.yaml."""
    return Column(_evaluation(paper, score), _evaluation(toy, toy_score or score, toy_length), **facts)


def _rows(table: dict) -> dict[str, Row]:
    rows = table["rows"].items()
    return {label: {profile: _backbone(row.get(profile, "")) for profile in PROFILES} for label, row in rows}


ROWS: dict[str, dict[str, Row]] = {name: _rows(table) for name, table in _TABLES.items()}
COLUMNS: dict[str, Column] = {name: read_column(**content) for name, content in _CONTENT["columns"].items()}
DATA_SETS: dict[str, dict] = _CONTENT["data_sets"]  # by name: the printed values, and by profile what counts objects
