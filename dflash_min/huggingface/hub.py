"""Files of Hugging Face models, from a folder, the Hub's cache or the Hub, and without a network.

huggingface_hub asks the Hub about each file anew. Where that cannot be reached and its cache lacks
the file, it tries six times and prints each time. So the Hub is asked once here, with little
patience, and if there is no answer everything else is looked for in the cache only.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dflash_min.errors import first_line
from dflash_min.huggingface.form import CONFIG_FILE

if TYPE_CHECKING:
    from dflash_min.huggingface.named import Named

_PATIENCE_S: Final = 2.0
"""For an answer of the Hub, unless the user has set huggingface_hub's own HF_HUB_ETAG_TIMEOUT."""


def file(model: Named, name: str) -> Path | None:
    """Return where a file of a model is, fetched from the Hub if need be; None if there is none.

    Raises:
        UsageError: if the Hub has no such model or does not give it, or if an environment variable
            of huggingface_hub's cannot be read.
    """
    folder = Path(model.name)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    _check_settings(model)
    import httpx
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model.name, name, local_files_only=local_only(model)))
    except LocalEntryNotFoundError as error:
        cause = error.__cause__  # why a Hub that was asked did not give it
        if cause is None or _is_404(cause):
            return None
        reason = f"no such folder, and no {name} from the Hub ({first_line(cause)})"
        raise model.refused(reason) from error
    except EntryNotFoundError:
        return None
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise model.refused(f"no such folder, and {first_line(error)}") from error


def local_only(model: Named) -> bool:
    """Return whether a model is to be looked for on this machine only: what transformers takes."""
    return Path(model.name).is_dir() or unreachable(model.name) is not None


def places(model: Named) -> str:
    """Say where a file was looked for that is not there."""
    if Path(model.name).is_dir():
        return "in the folder"
    reason = unreachable(model.name)
    if reason is None:
        return "in such a folder or on the Hub"
    return f"in such a folder or in the Hub's cache, and the Hub cannot be reached ({reason})"


@functools.cache
def unreachable(name: str) -> str | None:
    """Return why the Hub cannot be asked for a model, None if it answers, whatever it says.

    It is asked once in a process: one that comes back meanwhile does not change the revision.
    """
    import httpx
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    is_set = bool(os.environ.get("HF_HUB_ETAG_TIMEOUT"))
    patience_s = constants.HF_HUB_ETAG_TIMEOUT if is_set else _PATIENCE_S
    try:
        get_hf_file_metadata(hf_hub_url(name, CONFIG_FILE), timeout=patience_s)
    except (HfHubHTTPError, HFValidationError):
        return None
    except (httpx.HTTPError, OSError, httpx.InvalidURL, ValueError, ImportError) as error:
        # HF_HUB_OFFLINE is an OSError. The last three: a proxy that is no URL or of an unknown
        # scheme, or SOCKS where httpx lacks its package.
        return first_line(error)
    return None


def _check_settings(model: Named) -> None:
    """Refuse the model where huggingface_hub, as it is imported, cannot read its environment."""
    try:
        import huggingface_hub.constants  # noqa: F401
    except ValueError as error:
        reason = f"huggingface_hub cannot read its environment variables ({first_line(error)})"
        raise model.refused(reason) from error


def _is_404(error: BaseException) -> bool:
    """Return whether a Hub has no such file, and does not say it in huggingface.co's own way."""
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error, HfHubHTTPError) and error.response.status_code == 404
