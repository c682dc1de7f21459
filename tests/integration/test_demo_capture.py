from __future__ import annotations

from pathlib import Path

import pytest

from hosting import demo
from hosting.demo import CaptureFailed, capture_demo_session


def test_the_demo_session_has_a_small_real_profile_of_each_host(cpu_session: Path) -> None:
    files = {file.name: file.stat().st_size for file in cpu_session.iterdir()}
    assert set(files) == {"demo-host-0.xplane.pb", "demo-host-1.xplane.pb"}
    assert all(100_000 < size < 3_000_000 for size in files.values())
    assert cpu_session.parts[-4:-1] == ("demo", "plugins", "profile")
    assert b"train_step" in (cpu_session / "demo-host-1.xplane.pb").read_bytes()


def test_a_training_process_that_cannot_start_is_reported_with_its_log_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "demo_training.py"
    broken.write_text("raise SystemExit('no JAX here')")
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "demo.py"))
    with pytest.raises(CaptureFailed, match=r"demo-host-0 did not start to train.*\n.*no JAX here"):
        capture_demo_session(tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_a_capture_that_hangs_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo_training.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "demo.py"))
    with pytest.raises(CaptureFailed, match="demo-host-0 did not start to train"):
        capture_demo_session(tmp_path / "logs", within=0.5)
