"""What all tests share: the layers they belong to, and profiles to work on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hosting.demo import capture_demo_session

ROOT = Path(__file__).parent.parent
SHARED_PROFILES = ROOT.parent / "shared" / "profiles"
PROFILES = {
    "gpu": SHARED_PROFILES / "gpu_multi_worker" / "34.83.195.179_6003.xplane.pb",
    "tpu": SHARED_PROFILES / "tpu_inference" / "tpu_inference_2.xplane.pb",
}


def pytest_configure(config: pytest.Config) -> None:
    # Settings of whoever runs the tests must not reach the services under test.
    for name in [name for name in os.environ if name.startswith("XPROF_HOSTING_")]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folder says which layer a test is in; whatever captures with JAX starts processes, too."""
    for item in items:
        folders = item.path.relative_to(ROOT).parts
        if "browser" in folders:
            item.add_marker(pytest.mark.browser)
        if "integration" in folders or {"cpu_session", "any_profile"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def shared_profiles() -> dict[str, Path]:
    """Real profiles by kind, `gpu` and `tpu`. Skips where they are not at hand."""
    missing = [str(path) for path in PROFILES.values() if not path.is_file()]
    if missing:
        pytest.skip(f"the shared profiles are missing: {', '.join(missing)}")
    return dict(PROFILES)


@pytest.fixture(scope="session")
def gpu_profile(shared_profiles: dict[str, Path]) -> Path:
    """TensorFlow on 8 GPUs."""
    return shared_profiles["gpu"]


@pytest.fixture(scope="session")
def tpu_profile(shared_profiles: dict[str, Path]) -> Path:
    """JAX inference on 4 TPU cores."""
    return shared_profiles["tpu"]


@pytest.fixture(scope="session")
def cpu_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a session with two hosts, captured from two JAX processes on the CPU. Not to be written to."""
    return capture_demo_session(tmp_path_factory.mktemp("cpu_session"))


@pytest.fixture(params=["cpu", "gpu", "tpu"])
def any_profile(request: pytest.FixtureRequest) -> Path:
    """One profile of every kind in turn; at least the CPU's, where the shared ones are missing."""
    if request.param == "cpu":
        session: Path = request.getfixturevalue("cpu_session")
        return session / "demo-host-0.xplane.pb"
    profile: Path = request.getfixturevalue(f"{request.param}_profile")
    return profile
