"""What ``gemmdesc verify`` compares with what, where it keeps its records, and the machine that it has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdesc.cli.libraries import Opener, simulated_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gemmdesc.library.interface import Library
    from gemmdesc.probe.sampling import Scope
    from gemmdesc.problem import DeviceId, LibraryId
    from gemmdesc.profiles import Level, Profile
    from gemmdesc.verification.campaign import Machine

#: Device memory that is left alone, and what each process takes for itself.
_SPARE_BYTES = 4 << 30
_PROCESS_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What is compared with what: makes the benches that workers use."""

    factory: Callable[[], Library]
    device: DeviceId
    library: LibraryId
    profile: Profile
    name: str
    accept: Level
    simulated: bool = False

    @classmethod
    def find(cls, opener: Opener, profile: Path | None, *, replayed: bool, accept: str = "verified") -> Sides:
        """Open the library once, and find the profile that applies.

        Raises:
            LibraryError: no GPU, no such library, or another library than torch's for our kernels.
            DeclinedError: there is no profile for it.
        """
        from gemmdesc.errors import Declined, DeclinedError, LibraryError
        from gemmdesc.profiles import find_profile, parse_level, profile_folders

        level = parse_level(accept)
        if not replayed and opener.spec is not None:
            raise LibraryError(f"library must be torch's own unless --replay is given (got {opener.spec})")
        made = opener()
        device, identity = made.device, made.identity
        found = find_profile(device, identity, profile_folders(profile), accept=level)
        if isinstance(found, Declined):
            raise DeclinedError(found)
        name = "replay" if replayed else "kernels"
        factory = _replay_factory(opener, found, device.sm, level) if replayed else _gpu_factory(profile, level)
        return cls(
            factory=factory, device=device, library=identity, profile=found, name=name, accept=level,
            simulated=opener.simulated,
        )  # fmt: skip

    @property
    def identity(self) -> dict[str, Any]:
        """The campaign's identity but for its options."""
        from gemmdesc.profiles import profile_digest

        return {
            "library": [str(self.library.version), self.library.build_id],
            "device": self.device.folder,
            "profile": profile_digest(self.profile),
            "ours": self.name,
            # Only where it is not the usual one, so that campaigns begun before still resume.
            **({} if self.accept.value == "verified" else {"accept": self.accept.value}),
        }

    def scopes(self, kinds: Sequence[str]) -> dict[str, Scope]:
        """What is drawn of each kind, by its name.

        Raises:
            InvalidInputError: there is no such kind, or the library is simulated and answers plain products only.
        """
        from gemmdesc.errors import InvalidInputError
        from gemmdesc.probe.facets import Kind
        from gemmdesc.probe.sampling import chosen_kinds, scope_named

        names = chosen_kinds(kinds)
        if not self.simulated:
            return {name: scope_named(name) for name in names}
        if names != (Kind.PLAIN.value,):
            raise InvalidInputError(f"kind must be plain with a simulated library (got {', '.join(kinds)})")
        return {Kind.PLAIN.value: simulated_scope()}

    def announced(self, folder: Path) -> str:
        """What a campaign says as it begins; ``folder``: of its records."""
        return f"cuBLASLt {self.library.version} on {self.device.name or self.device.folder}; records in {folder}"

    def folder(self, seed: int, draws: int) -> Path:
        """Where records go unless told otherwise."""
        from gemmdesc.profiles import profile_digest, user_folder

        key = f"{self.device.folder}-cublaslt-{self.library.version}-{profile_digest(self.profile)[:12]}"
        level = "" if self.accept.value == "verified" else f"-{self.accept.value}"
        return user_folder().parent / "verify" / f"{key}-{self.name}{level}-{seed}-{draws}"


def _gpu_factory(profile: Path | None, accept: Level) -> Callable[[], Library]:
    from gemmdesc.verification.gpu import GpuBenchFactory

    return GpuBenchFactory(profile=profile, accept=accept)


def _replay_factory(opener: Opener, profile: Profile, sm: str, accept: Level) -> Callable[[], Library]:
    from gemmdesc.library.torch_settings import TorchSettings, read_settings
    from gemmdesc.verification.replayed import ReplayBenchFactory

    settings = TorchSettings() if opener.simulated else read_settings(sm)
    return ReplayBenchFactory(library=opener, profile=profile, settings=settings, accept=accept)


def machine_at_hand(workers: int, *, shares_memory: bool) -> Machine:
    """The processes, and the device memory for them to share."""
    from gemmdesc.verification.campaign import Machine

    if not shares_memory:
        return Machine(workers=workers)
    import torch

    free, _ = torch.cuda.mem_get_info()
    return Machine(workers=workers, memory_bytes=max(1, free - _SPARE_BYTES - workers * _PROCESS_BYTES))
