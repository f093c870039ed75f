"""The tour in docs/ runs."""

import runpy
from pathlib import Path


def test_the_tour_runs(capsys):
    """docs/tour.py compiles its function three times and is right every time."""
    runpy.run_path(str(Path(__file__).parents[1] / "docs" / "tour.py"), run_name="__main__")
    assert "3 variants, right every time" in capsys.readouterr().out
