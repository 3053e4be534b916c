"""Pictures inside a page of HTML."""

import base64
import io

from PIL import Image

QUALITY = 80  # of WebP, which every browser of this decade shows


def data_uri(image: Image.Image, quality: int = QUALITY) -> str:
    """A picture as WebP, in a ``data:`` URI."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
