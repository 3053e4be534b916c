"""The study of merging at the size of a test, without the peers."""

from commands import run


def test_each_overlap_has_a_table_of_how_well_objects_are_merged(tmp_path):
    text = run("python studies/tiles/merging.py --tile 128 --count 40 --seeds 1", tmp_path)
    tables = text.split("Overlap ")[1:]
    assert [table.split(" px")[0] for table in tables] == ["0", "8", "16", "32"]
    for table in tables:
        rows = [line for line in table.splitlines() if "| revisit |" in line]
        assert len(rows) == 4 and rows[0].startswith("| exact | revisit | 100.0 | 100.0 | 0 | 0 |")
