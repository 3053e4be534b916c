"""Pictures inside the page, made small."""

import base64
import io
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from revisit.errors import first_line

WIDEST, TALLEST = 1200, 4000  # px
QUALITY = 80  # of WebP, which every browser of this decade shows


class Thumbnail(NamedTuple):
    """A picture for an img element, or why there is none."""

    caption: str
    source: str = ""  # a data: URI
    width: int = 0  # px
    height: int = 0  # px
    problem: str = ""


class Album:
    """Embeds pictures as long as there is room on the page, in bytes."""

    def __init__(self, room: int):
        self._room = room

    def embed(self, path: Path, caption: str) -> Thumbnail:
        """A picture, downscaled; of an animation the frame in the middle."""
        try:
            with Image.open(path) as image:
                frames = getattr(image, "n_frames", 1)
                if frames > 1:
                    image.seek(frames // 2)
                    caption = f"{caption}, frame {frames // 2 + 1} of {frames}"
                small = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return Thumbnail(caption, problem=f"cannot be read: {first_line(error)}")
        small.thumbnail((WIDEST, TALLEST))
        buffer = io.BytesIO()
        small.save(buffer, "WEBP", quality=QUALITY)
        encoded = base64.b64encode(buffer.getvalue()).decode()
        if len(encoded) > self._room:
            return Thumbnail(caption, problem="left out, to keep this page small")
        self._room -= len(encoded)
        return Thumbnail(caption, f"data:image/webp;base64,{encoded}", *small.size)
