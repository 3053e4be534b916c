"""YAML of anybody's: plain values, or one line before it takes more memory or time than its size suggests."""

import datetime
import resource

import pytest
from kills import fork
from trees import refused

from revisit.files import read_yaml

DOUBLED = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 20))
MERGED = "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30))


def test_values_are_plain_and_aliases_and_merge_keys_work(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {x: 1, y: no}\nb: {<<: *a, x: 2.5}\nc: [*a, ~, 2026-01-02]\n")
    a = {"x": 1, "y": False}
    assert read_yaml(file) == {"a": a, "b": {"x": 2.5, "y": False}, "c": [a, None, datetime.date(2026, 1, 2)]}
    file.write_text("names: [yes, no, 007]\n0: 1e3\n")
    assert read_yaml(file, as_text=True) == {"names": ["yes", "no", "007"], "0": "1e3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a0: &a0 [1]\n{DOUBLED}", "line 11: more than 100,000 values"),
        (f"a0: &a0 {{b: 1}}\n{MERGED}", "line .*: more than 100,000 values"),
        (f"a: &a [{'1,' * 400}]\nb: [{'*a,' * 400}]\n", "line 2: more than 100,000 values"),
        ("a: &a [*a]\n", "line 1: an alias inside what it stands for"),
        ("a: &a {<<: *a}\n", "line 1: an alias inside what it stands for"),
        ("[" * 10**5, "line 1: more than 50 levels"),
        ("a:\n" + "".join(f"{' ' * n}b:\n" for n in range(1, 99)), "line .*: more than 50 levels"),
        (f"a: {'9' * 3001}\n", "line 1: a value of more than 3,000 characters"),
        ("a: !!bool maybe\n", "no YAML of plain values"),
        ("a: 1\n" * 10**6, "larger than 1 MiB"),
        ("a: 1\nb: 2\na: 3\n", "a stands in lines 1 and 3: expected one of them"),
        ("a: [\n", "no YAML of plain values .line 2: "),
        ("a: 2026-99-99\n", "no YAML of plain values .month must be in 1..12"),
        ("a: !!python/object/apply:os.getcwd []\n", "no YAML of plain values .line 1: could not determine"),
        ("a: \0\n", "no YAML of plain values"),
    ],
)
def test_what_would_take_more_than_its_size_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)

    def refuse() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused(f"a.yaml: {message}", read_yaml, tmp_path / "a.yaml")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB

    code, output = fork(refuse)  # whose peak starts from what this process has now
    assert code == 0, output
    refused("a.yaml", read_yaml, tmp_path / "missing" / "a.yaml")


def test_a_list_of_thousands_of_classes_is_read(tmp_path):
    (tmp_path / "a.yaml").write_text("names:\n" + "".join(f"  {n}: class {n}\n" for n in range(3000)))
    names = read_yaml(tmp_path / "a.yaml")["names"]
    assert len(names) == 3000 and names[2999] == "class 2999"
