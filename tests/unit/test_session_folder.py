from __future__ import annotations

from pathlib import Path

import pytest

from tests.session_folder import add_session


@pytest.mark.parametrize(("run", "folder"), [("a/b", "a/b/plugins/profile/s"), ("", "plugins/profile/s")])
def test_a_session_is_laid_out_as_profilers_write_it(tmp_path: Path, run: str, folder: str) -> None:
    profile = tmp_path / "source"
    profile.write_bytes(b"profile")
    assert add_session(tmp_path / "root", run, "s", {"10.0.0.1_6003": profile}) == tmp_path / "root" / folder
    assert (tmp_path / "root" / folder / "10.0.0.1_6003.xplane.pb").read_bytes() == b"profile"
