"""The cached profiles of `torchshare profile`."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from torchshare.context.names import escaped
from torchshare.durable.cache import CacheUnusable, own_folder
from torchshare.durable.files import file_stem
from torchshare.profiles.profile import Profile, device_name
from torchshare.profiling.measurement import Candidate
from torchshare.scripts import targets


def cache_folder(given: Path | None) -> Path | None:
    """The folder of cached profiles; None, after a warning, if there can be none."""
    if given is not None:
        if given.exists() and not given.is_dir():
            raise ValueError(f"--cache must be a folder, got {given}")
        return given
    try:
        return own_folder("profiles")
    except CacheUnusable as reason:
        print(f"torchshare: profiles are not cached: {escaped(str(reason))}", file=sys.stderr)
        return None


def cache_path(folder: Path, name: str, target: str, threads: int, splits: int, cwd: str = "") -> Path:
    """One file per job, device, number of threads, splits and working folder given."""
    place, _, function = target.rpartition(":") if targets.is_function(target) else (".", "", target)
    where = str(Path(place).resolve()) if place.endswith((".", ".py")) else place
    key = "\n".join([name, where, function, device_name(), str(threads), str(splits), *filter(None, [cwd])])
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return folder / f"{file_stem(name)}-{digest[:12]}.json"


def cached(path: Path | None, candidate: Candidate) -> Profile | None:
    """The cached profile; None, after printing why, if it is of another device, torch version or code."""
    if path is None or not path.exists():
        return None
    try:
        profile = Profile.load(path)
        refusal = profile.refusal(candidate.function)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        print(f"torchshare: measuring '{escaped(candidate.name)}' again: {escaped(refusal)}", file=sys.stderr)
        return None
    return profile


def with_former_partners(profile: Profile, former: Profile | None) -> Profile:
    """Keeps earlier measurements beside other partners."""
    if former is None:
        return profile
    new = {partner.job for partner in profile.partners}
    kept = [partner for partner in former.partners if partner.job not in new]
    return profile.model_copy(update={"partners": [*profile.partners, *kept]})


def keep(profile: Profile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    profile.save(path)
