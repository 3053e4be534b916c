"""How large a JPEG inside of another file says that it is, before a decoder makes room for it."""

_NO_FRAMES = (0xC4, 0xC8, 0xCC)  # markers among those of frames
_JPEG_LS = 0xF7


def jpeg_size(data: bytes) -> tuple[int, int]:
    """(height, width) in px by the header of a JPEG of any kind, lossless ones too; (0, 0) where it has none."""
    position = 2
    while position + 9 < len(data):
        marker = data[position + 1]
        if marker == _JPEG_LS or (0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES):
            return int.from_bytes(data[position + 5 : position + 7]), int.from_bytes(data[position + 7 : position + 9])
        position += 1 if marker == 0xFF else 2 + int.from_bytes(data[position + 2 : position + 4])
    return 0, 0
