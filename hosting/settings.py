"""Every setting of the service, in one typed place: flags, environment variables, settings file, defaults.

A flag `--cache-gib` is also the environment variable `XPROF_HOSTING_CACHE_GIB` and the key `cache_gib` of the settings
file; the flag wins over the variable, the variable over the file. This is the only module that reads the environment.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import platformdirs
from pydantic import Field, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from loaders.engines.accelerated import AcceleratedLimits
from loaders.engines.pool import EngineLimits
from loaders.engines.trust import engine_key
from loaders.errors import BadParameter
from loaders.stores import StoreOptions, canonical_uri

_GIB: Final = 1 << 30
_AWS_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ALLOW_HTTP",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)


class Settings(BaseSettings):
    """What an instance is made of. Immutable; replicas get a copy."""

    model_config = SettingsConfigDict(env_prefix="XPROF_HOSTING_", extra="forbid", frozen=True)

    logdir: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Where sessions are looked for, as [NAME=]URI: a folder, gs://…, s3://…. Repeatable."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8791, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    state_dir: Path = Field(
        default_factory=lambda: platformdirs.user_state_path("xprof-hosting"),
        description="Folder for the file cache, results and logs. One instance per folder.",
    )
    local_interval: float = Field(
        default=4.0, gt=0, allow_inf_nan=False, description="Seconds between listings of a folder while somebody looks."
    )
    bucket_interval: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds between listings of a bucket while somebody looks.",
    )
    results: str | None = Field(
        default=None, description="Where results are kept: a folder or gs://…, s3://…. Default: in the state folder."
    )
    ray_address: str | None = Field(
        default=None, description="An existing Ray cluster to run on, as host:port or 'auto'. Default: one of its own."
    )
    front: Literal["direct", "haproxy", "python"] = Field(
        default="direct",
        description="What takes HTTP: the gateways themselves, all on this machine; or, on every machine that has one, "
        "Ray Serve's HAProxy or its Python proxy.",
    )
    ray_dashboard: bool = Field(default=False, description="Start Ray's dashboard with the embedded Ray.")
    gateways: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Gateway replicas. Default: one for every four cores, at least one, and two behind HAProxy.",
    )
    shards: int = Field(
        default_factory=lambda: max(1, min(8, (os.cpu_count() or 2) // 2)),
        ge=1,
        le=1024,
        description="Shard replicas.",
    )
    engine: Literal["auto", "xprof", "xprof-rs"] = Field(
        default="auto",
        description="What answers: xprof, the reference; xprof-rs, several times faster, wherever it gives an answer; "
        "or auto, which asks xprof-rs only for what it was found to answer as xprof does.",
    )
    engine_processes: int = Field(default=2, ge=1, le=64, description="Engine processes per shard.")
    engine_deadline: float = Field(default=600.0, gt=0, description="Seconds that one engine call may take.")
    engine_memory_gib: float = Field(
        default_factory=lambda: round(_memory_bytes() * 0.6 / _GIB, 1),
        gt=0,
        description="Resident GiB that one engine process may reach.",
    )
    max_waiting: int = Field(
        default=256, ge=1, description="Results that a shard makes or queues at once; more are answered 429."
    )
    shard_budget_mib: float = Field(
        default=128.0,
        ge=0,
        description="MiB of XPlane files of one session that a shard opens whole; a larger one is split by host.",
    )
    prewarm: Literal["off", "links", "all"] = Field(
        default="links",
        description="What is made before anybody asks, when nothing more urgent is to be done: nothing; the tools of "
        "sessions that a link was made to or that somebody has begun to open; those of all sessions that arrive, too.",
    )
    cache_gib: float = Field(
        default=50.0, gt=0, description="GiB of the file cache, shared by the shards of a machine."
    )
    results_gib: float = Field(default=10.0, gt=0, description="GiB of the result store, when it is a folder.")
    hide_capture_profile_button: bool = Field(default=True, description="Hide the UI's Capture Profile button.")
    src_prefix: str | None = Field(default=None, description="Prefix that the UI puts before source paths.")
    enable_tab_name_label: bool = Field(default=False, description="Let the UI put a label into the tab's title.")
    insecure_no_auth: bool = Field(
        default=False, description="Allow a --host other than loopback although everyone may then see everything."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged.")

    @field_validator("logdir", mode="before")
    @classmethod
    def _split_logdir(cls, value: Any) -> Any:
        """One variable holds several log roots as a JSON list or separated by commas."""
        if isinstance(value, str):
            return json.loads(value) if value.lstrip().startswith("[") else [v for v in value.split(",") if v]
        return value

    @property
    def results_uri(self) -> str:
        """Where results are kept, as a canonical uri."""
        return canonical_uri(self.results) if self.results else canonical_uri(str(self.state_dir / "results"))

    @property
    def engine_limits(self) -> EngineLimits:
        """What one engine process may use."""
        return EngineLimits(
            processes=self.engine_processes,
            deadline=self.engine_deadline,
            memory_bytes=int(self.engine_memory_gib * _GIB),
        )

    @property
    def shard_budget_bytes(self) -> int:
        """Bytes of a session's files that one shard opens whole."""
        return int(self.shard_budget_mib * (1 << 20))

    @property
    def engine_key(self) -> str:
        """The engine's part of every result's key."""
        return engine_key(self.engine)

    @property
    def accelerated_limits(self) -> AcceleratedLimits:
        """What the accelerated engine's process may use: no more than one of the others."""
        bounds = AcceleratedLimits(memory_bytes=int(self.engine_memory_gib * _GIB))
        return replace(bounds, deadline=min(bounds.deadline, self.engine_deadline))

    @property
    def cache_bytes(self) -> int:
        """The file cache's size in bytes."""
        return int(self.cache_gib * _GIB)

    @property
    def results_bytes(self) -> int:
        """The local result store's size in bytes."""
        return int(self.results_gib * _GIB)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the settings file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Settings from given flags, the environment and a settings file (TOML).

    Raises:
        pydantic.ValidationError: a value that is not allowed; it names the setting.
        FileNotFoundError: there is no such settings file.
        BadParameter: the settings file can't be read, or is no TOML.
    """
    config = config or _config_from_environment()
    if config is not None and not config.is_file():
        raise FileNotFoundError(f"There is no settings file at {config}.")

    class _FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=config)

    try:
        found = _FromFile(**flags) if config is not None else Settings(**flags)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadParameter(f"The settings file {config} can't be read: {error}.") from None
    return Settings.model_construct(**{name: getattr(found, name) for name in Settings.model_fields})


def store_options() -> StoreOptions:
    """How stores are reached, from the variables that their own tools use: `STORAGE_EMULATOR_HOST` and `AWS_*`."""
    return StoreOptions(
        gcs_endpoint=os.environ.get("STORAGE_EMULATOR_HOST") or None,
        s3={name: os.environ[name] for name in _AWS_VARIABLES if os.environ.get(name)},
    )


def default_server() -> str:
    """The address that client commands talk to: `XPROF_HOSTING_SERVER`, else this machine's default port."""
    return os.environ.get("XPROF_HOSTING_SERVER", "http://127.0.0.1:8791")


def _config_from_environment() -> Path | None:
    value = os.environ.get("XPROF_HOSTING_CONFIG")
    return Path(value) if value else None


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
