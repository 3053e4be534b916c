"""Which folders become packages; pyproject.toml has the rest.

What stands next to revisit in a checkout lies inside it in a wheel, in revisit/home, so that a wheel brings one name.
"""

import re
import sys
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

PROJECTS = find_namespace_packages(include=["projects*"], exclude=["*__pycache__*"])
FOLDERS = [
    Path("tools"),
    Path("datasets"),
    *Path("configs").glob("**/"),
    *(Path(*name.split(".")) for name in PROJECTS),
]
HOME = {".".join(("revisit", "home", *folder.parts)): str(folder) for folder in FOLDERS}
IS_CHECKOUT = "editable_wheel" in sys.argv  # an editable installation keeps the names of the checkout
STUDIES = find_namespace_packages(include=["studies*"], exclude=["*__pycache__*"])  # whose scripts import each other


class BuildWithHome(build_py):
    """Code in revisit/home names projects by their place, whatever else is called ``projects`` there."""

    def run(self) -> None:
        super().run()
        for path in Path(self.build_lib, "revisit/home").rglob("*.py"):
            code = re.sub(r"(?m)^(\s*(?:from|import)) projects\b", r"\1 revisit.home.projects", path.read_text())
            path.write_text(code)


setup(
    packages=[
        *find_namespace_packages(include=["revisit*"], exclude=["*__pycache__*"]),
        *((*PROJECTS, *STUDIES) if IS_CHECKOUT else HOME),
    ],
    package_dir={} if IS_CHECKOUT else HOME,
    package_data={"": ["*.yaml", "*.md", "*.j2", "*.html", "*.css", "*.js"], "revisit": ["py.typed"]},
    cmdclass={"build_py": BuildWithHome},
)
