"""Pages of HTML that load nothing: their templates, what they all begin with, and pictures inside them."""

import base64
import io

import jinja2
from PIL import Image

from revisit.plugins import PROJECTS

COMMON = "Pictures"  # which has head.html
QUALITY = 80  # of WebP, which every browser of this decade shows


def template(project: str, name: str, *more: str) -> jinja2.Template:
    """A template of projects/PROJECT, which may include those of ``more`` projects and head.html. Texts are escaped; a
    name without a value is an error."""
    folders = [PROJECTS / folder / "templates" for folder in (project, *more, COMMON)]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def data_uri(image: Image.Image, quality: int = QUALITY) -> str:
    """A picture as WebP, in a ``data:`` URI."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
