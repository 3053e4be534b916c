"""Real data for `make check-real`, by hand; nothing that reads it runs in `make test`."""

import os
from pathlib import Path

import pytest
from commands import ROOT

DATA = Path(os.environ.get("REVISIT_REAL_DATA", ROOT.parent / "shared" / "data"))
needs_real_data = [
    pytest.mark.real_data,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data in {DATA}: set REVISIT_REAL_DATA"),
]
