"""Reads the mapping files of the user, in the formats of mindstudio-probe, into one `Translation`.

data:  {target name: golden name}, names of calls or of their items
cell:  {path.Class: path.Class}
api:   {ms_api, pt_api, ms_args, pt_args, ms_outputs, pt_outputs}, a list of them, or one a document
layer: {TopLayer: {name: name}, Class: {attribute: attribute}}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.align.translate import ApiRule, Translation
from msprobe.compare.calls import parse_name
from msprobe.dump.errors import DumpError

MAX_BYTES = 16 << 20


def load_mappings(
    data: Optional[Path] = None,
    cell: Optional[str] = None,
    api: Optional[str] = None,
    layer: Optional[str] = None,
) -> Optional[Translation]:
    """None if no mapping is requested. An empty name means the built-in table."""
    if data is None and cell is None and api is None and layer is None:
        return None
    translation = Translation(across=cell == "" or api == "" or layer == "")
    if data is not None:
        _data(translation, data)
    if cell:
        translation.cells.update(_texts(_read(Path(cell)), Path(cell)))
    if api:
        _apis(translation, Path(api))
    if layer:
        for name, renames in _mapping(_read(Path(layer)), Path(layer)).items():
            translation.layers[str(name)] = _texts(renames, Path(layer))
    return translation


def map_names(names: Mapping[str, str]) -> Translation:
    """The translation that a data mapping with these names gives."""
    translation = Translation()
    _add_names(translation, names)
    return translation


def _data(translation: Translation, path: Path) -> None:
    _add_names(translation, _texts(_read(path), path))


def _add_names(translation: Translation, names: Mapping[str, str]) -> None:
    for ours, theirs in names.items():
        translation.slots[ours] = theirs
        for left, right in ((ours, theirs), (_call_of(ours), _call_of(theirs))):
            if parse_name(left)[0] != "other" and parse_name(right)[0] != "other":
                translation.calls[left] = right
                break


def _call_of(name: str) -> str:
    """`Torch.mm.0.forward.input.0` -> `Torch.mm.0.forward`."""
    for part in (".input.", ".output.", ".parameters."):
        head, found, _ = name.partition(part)
        if found:
            return head
    return name


def _apis(translation: Translation, path: Path) -> None:
    documents = _read_all(path)
    entries = documents[0] if len(documents) == 1 and isinstance(documents[0], list) else documents
    for entry in entries:
        if not isinstance(entry, dict) or not entry.get("ms_api") or not entry.get("pt_api"):
            raise DumpError(f"{path}: an entry lacks ms_api or pt_api: {entry!r}.")
        outputs = [entry.get(f"{side}_outputs", entry.get(f"{side}_output")) for side in ("ms", "pt")]
        translation.apis[str(entry["ms_api"])] = ApiRule(
            str(entry["pt_api"]),
            _positions("input", entry.get("ms_args"), entry.get("pt_args"), path),
            _positions("output", outputs[0], outputs[1], path),
        )


def _positions(part: str, ours: Any, theirs: Any, path: Path) -> dict[str, str]:
    ours, theirs = ours or [], theirs or []
    if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
        raise DumpError(f"{path}: the {part} lists of an entry must be lists of the same length.")
    return {f"{part}.{a}": f"{part}.{b}" for a, b in zip(ours, theirs)}


def _read(path: Path) -> Any:
    documents = _read_all(path)
    return documents[0] if documents else {}


def _read_all(path: Path) -> list[Any]:
    import yaml

    from msprobe.dump.untrusted.yaml_files import load_all

    try:
        if path.stat().st_size > MAX_BYTES:
            raise DumpError(f"{path} is larger than any mapping file ({MAX_BYTES >> 20} MiB).")
        return load_all(path.read_bytes())
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from None
    except yaml.YAMLError as error:
        raise DumpError(f"{path} is not YAML: {str(error).splitlines()[0]}.") from None


def read_document(path: Path) -> Any:
    """A YAML file that maps texts to texts."""
    return _read(path)


def _mapping(value: Any, path: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise DumpError(f"{path} must be a mapping of names, not {type(value).__name__}.")
    return value


def _texts(value: Any, path: Path) -> dict[str, str]:
    return {str(left): "" if right is None else str(right) for left, right in _mapping(value, path).items()}
