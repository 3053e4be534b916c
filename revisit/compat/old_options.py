"""Options of version 0.1's commands, and what they are called now. The old words work, and warn once, until 0.3."""

from collections.abc import Iterator, Sequence

from revisit.compat.moved import warn_of_moved

# Command, or all; old word; what stands in its place. What ends in = begins the word that follows.
_TABLE = """
all             --images           --data
all             --dataset          --data
all             --starts           --weights
all             --num-images       --count
all             --gpus             --num-gpus
all             --workers          --processes
all             --parallel         --processes
all             --slurm            --on slurm
all             --task-cpus        --cpus
all             --task-gpus        --num-gpus
all             --pyramid          --features pyramid
all             --box-head         --features box-head
atlas           --columns          --table
atlas           --map              --how
benchmark       --dataset          --test
benchmark       --calibrate        --data
benchmark       --runtimes         --format
benchmark       --threads          --cpus
check_labels    --labels           --data
check_labels    --detections       --boxes
check_labels    --accept           --table
check_labels    --workers          --readers
compare_starts  --budget           --time
compare_starts  --probe            --how probe
compare_starts  --until-flat       --how until-flat
compare_starts  --frozen           --how frozen
compare_starts  --pick             --labelled
compare_starts  --tolerance        --rule tolerance=
compare_starts  --patience         --rule patience=
compare_starts  --longest          --rule longest=
convert_to_d2   --config           --config-file
convert_to_d2   --recalibrate      --data
convert_to_d2   --calibrate        --data
convert_to_d2   --strip            --only
convert_to_d2   --weights-of       --how
convert_to_d2   --rgb              --format rgb
curate          --similar          --rule cosine=
curate          --bits             --rule bits=
curate          --clusters         --rule clusters=
curate          --keep             --count
demo            --quick            --how quick
discover        --boxes            --count
export_weights  --to               --format
make_shards     --images-per-shard --count
make_shards     --index-only       the default
make_shards     --quality          --rule quality=
make_toy_scenes --overwrite        --replace
make_toy_scenes --long-tailed      --how long-tailed
reproduce       --select           --how
scale           --images           --count
scale           --gpu              --device
scale           --assume           --rule
select_images   --budget           --count
self_label      --leave-out        --labelled
similar         --query            --data
similar         --box              --boxes
slurm           --nodes            --num-machines
slurm           --gpus-per-node    --num-gpus
slurm           --cpus-per-gpu     --cpus
slurm           --cpu              --device cpu
slurm           --logs             --output
slurm           --print            --dry-run
slurm           --job-name         --title
snapshots       --parts            --count
spoil_labels    --labels           --data
verify          --columns          --only
verify          --published        --table
verify          --list             the default
verify          --fetch            --how fetch
visualize       --truth-only       --how truth
visualize       --rows             --rule rows=
"""
_ASSUMED = (
    "batch-per-gpu gpu-images-per-second image-kb efficiency bandwidth-share core-rate latency-ms request-ms "
    "partitions requests node-gbit node-gib spread save-gb gpu-hours-to-failure start-s index-gb request-price "
    "gb-price gb-month-price"
)


def _by_command() -> dict[str, dict[str, str]]:
    words: dict[str, dict[str, str]] = {}
    for line in _TABLE.strip().splitlines():
        command, old, new = line.split(maxsplit=2)
        words.setdefault(command, {})[old] = new
    words["scale"] |= {f"--{name}": f"--rule {name}=" for name in _ASSUMED.split()}
    return words


OLD_OPTIONS = _by_command()  # by command, "all" for every one
NOTHING = "the default"  # stands in place of what needs no word any more


def current_words(tool: str, words: Sequence[str], *, warns: bool = True) -> list[str]:
    """The command line of a tool in today's words, up to a ``--``, with a warning of each old one."""
    known = OLD_OPTIONS["all"] | OLD_OPTIONS.get(tool, {})
    end = words.index("--") if "--" in words else len(words)
    renamed: list[str] = []
    rest = iter(words[:end])
    for word in rest:
        old, equals, value = word.partition("=")
        new = known.get(old)
        if new is None:
            renamed.append(word)
            continue
        if warns:
            warn_of_moved(old, new.removesuffix("="))
        renamed += _replaced(new, equals + value, rest)
    return [*renamed, *words[end:]]


def _replaced(new: str, value: str, rest: Iterator[str]) -> list[str]:
    if new == NOTHING:
        return []
    *before, last = new.split()
    if last.endswith("="):
        return [*before, last + (value.removeprefix("=") or next(rest, ""))]
    return [*before, last + value]
