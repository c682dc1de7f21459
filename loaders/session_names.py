"""What an object's place below a log root says: which session it belongs to, or why it holds none."""

from __future__ import annotations

from urllib.parse import quote

XPLANE_SUFFIX = ".xplane.pb"
_PLUGIN = "/plugins/profile"

_FOREIGN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("XPlane files in Riegeli form (only *.xplane.pb is read)", (".xplane.riegeli",)),
    (
        "files XProf caches beside profiles",
        (".sstable", ".op_stats_v2.pb", ".hlo_proto.pb", "cache_version.txt", ".cached_tools.json"),
    ),
    (
        "files of old profile formats (only *.xplane.pb is read)",
        (
            ".trace.json.gz",
            ".trace.json",
            ".trace",
            ".memory_profile.json.gz",
            ".overview_page.pb",
            ".input_pipeline.pb",
            ".tensorflow_stats.pb",
            ".kernel_stats.pb",
            ".op_profile.json",
            ".pod_viewer.json",
        ),
    ),
)
_EVENTS = "TensorBoard event files"
_OTHER = "other files"


def split_uri(uri: str) -> tuple[str, str]:
    """Split a canonical uri into its store (`gs://bucket`, `file://`) and its path, empty or beginning with `/`."""
    scheme, _, rest = uri.partition("://")
    container, slash, path = rest.partition("/")
    return f"{scheme}://{container}", (slash + path).rstrip("/")


def folder_of(uri: str) -> str:
    """The canonical uri of the folder an object lies in."""
    folder = uri.rpartition("/")[0]
    return "file:///" if folder == "file://" else folder


def base_name(uri: str) -> str:
    """The last part of a folder's or object's uri."""
    return uri.rpartition("/")[2]


def address_of(folder: str) -> str:
    """The address, on the service, that opens a folder which is not listed as a session."""
    return "/?session_path=" + quote(folder, safe="/:")


def host_of(file_name: str) -> str | None:
    """The host that wrote a file: its name less `.xplane.pb`, never parsed further; None for any other file."""
    if not file_name.endswith(XPLANE_SUFFIX):
        return None
    return file_name[: -len(XPLANE_SUFFIX)] or None


def session_name(folder: str, root: str) -> str | None:
    """The stock server's run name of the session in `folder`, seen from the log root `root` (both canonical uris).

    A session is any `…/plugins/profile/<session>`, and is called `<…>/<session>`, or just `<session>` when `…` is the
    root itself or lies above it, as for a root that is a `plugins/profile` folder. None for any other folder.
    """
    head, _, session = split_uri(folder)[1].rpartition("/")
    if not session or not head.endswith(_PLUGIN):
        return None
    run_folder = head[: -len(_PLUGIN)]
    inside = split_uri(root)[1] + "/"
    if not run_folder.startswith(inside) or run_folder == inside:
        return session
    return f"{run_folder[len(inside) :]}/{session}"


def foreign_kind(file_name: str) -> str:
    """What kind of file this is, for counting, when it is not an XPlane file."""
    lower = file_name.lower()
    for kind, endings in _FOREIGN:
        if lower.endswith(endings):
            return kind
    return _EVENTS if "tfevents" in lower else _OTHER
