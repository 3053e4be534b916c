"""What tells images from others is ``records.fingerprint``; who makes another digest stands here, and why."""

import ast

from test_house import nodes_of, trees

IMAGES = {
    "revisit/data/sources/records.py",  # fingerprint; the contents of images, for equal ones
    "projects/FrozenEvaluations/labelled_sets.py",  # of every image, not of a sample: the name of a cache of features
    "projects/Rows/hashes.py",  # of the bytes that are decoded as well, in one reading
}
OTHERS = {
    "revisit/files.py",  # of a file
    "revisit/jobs/commands.py",  # of what a recipe states
    "revisit/network/network.py",  # of tensors
    "revisit/data/sources/rows.py",  # of a table's numbers
    "projects/CompareStarts/probe.py",  # of words: the name of a result
    "projects/CompareStarts/starts.py",
    "projects/LargeData/cache.py",
    "projects/LargeData/run_store.py",  # on the way to a store
    "projects/LargeData/shard_index.py",
    "projects/Objectives/image_groups.py",  # of a group's name: its number
    "projects/Paper/paper_tables.py",
    "projects/Pixels/dicom.py",  # of a patient, who stays unnamed
    "projects/Rows/embedding.py",  # of boxes and classes
    "tools/install_detectron2.py",  # of the archive, before anything is installed
}


def test_who_makes_digests_is_known():
    imports = {
        str(path)
        for path, tree in trees().items()
        if path.parts[0] in ("revisit", "projects", "tools")
        if any(isinstance(node, ast.Import) and node.names[0].name == "hashlib" for node in nodes_of(tree))
    }
    assert imports == IMAGES | OTHERS
