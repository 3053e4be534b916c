"""Each thing has one door: a second copy of what lives in one place would be found here."""

import re

from commands import ROOT

RINGS = ("revisit", "projects", "tools", "studies")
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text() for ring in RINGS for path in sorted((ROOT / ring).rglob("*.py"))
}


def files_with(pattern: str) -> set[str]:
    """The source files that have a regular expression."""
    return {name for name, text in SOURCES.items() if re.search(pattern, text)}


def test_one_function_writes_markdown_tables():
    card = "projects/Weights/export.py"  # a text with a table in it, whose rows as_card_says reads
    assert files_with(r"\|-{3}|\| -{3}|\"---\"") == {"revisit/markdown.py", card}
    assert files_with(r"""["'] \| ["']\.join|\{' \| '""") == {
        "revisit/markdown.py",
        "studies/benchmarks/check_gpu.py",  # rows that are printed as they come
        "studies/compare_starts/false_alarms.py",  # as above
    }


def test_one_function_draws_bars_of_progress():
    assert files_with(r"\btqdm\(|\{number\} of \{len") == {"revisit/progress.py"}


def test_one_class_says_whether_a_folder_is_of_the_same_facts():
    """Of a run's checkpoint engine/same_experiment.py says it, of shards at a URL their own manifest."""
    assert files_with(r"was made with other settings|def differences\(self|def claim\(output") == {
        "revisit/jobs/record.py"
    }
    readers = files_with(r"""json\.loads\(.*(RECORD|SETTINGS|"job.json"|"settings.json")""")
    assert readers == set()


def test_one_block_keeps_other_processes_out():
    """Two hold a lock for as long as they live, or until another one has it: a run, and who puts parts together. One
    waits a second at most; and a file that is written, or a log, is a lock by itself."""
    hold, waits_a_second = {"revisit/engine/run_lock.py", "revisit/jobs/shares.py"}, {"projects/LargeData/cache.py"}
    assert files_with(r"\bFileLock\(|\bfile_lock\b") == {"revisit/files.py"} | hold | waits_a_second
    assert files_with(r"\bflock\(") == {"revisit/files.py", "revisit/jobs/commands.py"}


def test_one_function_starts_a_child_and_one_file_writes_batch_scripts():
    """Studies start what they measure or kill; who only asks a program something waits for it by ``run``."""
    starters = files_with(r"\bPopen\(|os\.(fork|spawn\w+|posix_spawn)\(|os\.execv\(")
    assert {name for name in starters if not name.startswith("studies/")} == {"revisit/jobs/with_parent.py"}
    assert files_with('#SBATCH|"sbatch", ') == {"revisit/jobs/sbatch.py"}


def test_a_job_is_of_commands_and_parts_are_of_a_runner():
    classes = {name: re.findall(r"^class (Job|Parts|Runner)\b", text, re.MULTILINE) for name, text in SOURCES.items()}
    places = {each: [name for name, found in classes.items() if each in found] for each in ("Job", "Parts", "Runner")}
    assert places == {
        "Job": ["revisit/jobs/commands.py"],
        "Parts": ["revisit/jobs/runner.py"],
        "Runner": ["revisit/jobs/runner.py"],
    }


def test_one_file_starts_a_pool_of_processes():
    """A benchmark has one of its own, whose processes are what it measures."""
    pools = files_with(r"\bProcessPoolExecutor\(|\.Pool\(")
    assert pools == {"revisit/jobs/processes.py", "studies/benchmarks/measuring.py"}
