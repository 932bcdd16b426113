"""Where the papers' data and the outputs of their authors' programs are, if they are at hand."""

import os
from pathlib import Path

SHARED = Path(os.environ.get("DASKMM_SHARED", Path(__file__).parents[2] / "shared"))
