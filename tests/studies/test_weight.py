"""What the page of `make weight` counts, against small sources that are counted by hand."""

from commands import run

from studies.benchmarks.weight import OPENED, lines_to_open, weigh

SOURCE = '''"""A docstring
of two lines."""

# a comment
def f(x):
    """Another."""
    return x
'''


def test_docstrings_and_comments_are_no_code_lines(tmp_path):
    (tmp_path / "a.py").write_text(SOURCE)
    # Module, its docstring's Expr and Constant, FunctionDef, arguments, arg, Expr, Constant, Return, Name, Load.
    assert weigh(tmp_path) == (11, 11 / 2, [])


def test_a_function_with_eleven_branches_is_listed(tmp_path):
    (tmp_path / "a.py").write_text(
        "def ten(x):\n" + "    if x: pass\n" * 10 + "def more(x):\n" + "    if x: pass\n" * 11
    )
    assert weigh(tmp_path)[2] == ["a.py:more 11"]


def test_every_file_that_one_opens_for_a_change_is_there():
    assert all(lines_to_open(names) > 0 for names in OPENED.values())


def test_the_page_follows_a_config_to_the_first_step(tmp_path):
    page = run("python studies/benchmarks/weight.py --dynamic", tmp_path).splitlines()
    (reading,) = (line for line in page if line.startswith("read the config"))
    (changing,) = (line for line in page if line.startswith("change the config"))
    assert "modeling/meta_arch/moco.py" in reading and "data/views/mapper.py" in reading
    assert changing.endswith("1 functions: keys/declarations.py:assign")
