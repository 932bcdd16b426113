"""The notebooks of the papers: they run, and what the papers prove is seen in them."""

import json

import pytest
from _execution import executed

pytestmark = [pytest.mark.paper, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", ["ewp", "kernel", "mean-shift", "power-kmeans"])
def test_what_the_papers_prove_is_seen(name):
    question = "import json; print(json.dumps({k: bool(v) for k, v in checks.items()}))"
    answer, _ = executed(f"{name}-paper", question, seconds=600.0)
    checks = json.loads(answer)
    assert len(checks) >= 4
    assert [check for check, holds in checks.items() if not holds] == []
