"""Finds where this engine's attention backend writes K and V, by letting it write known values into a scratch page."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.resolved import CANONICAL
from tierkv.connectors.vllm.pages.orders import Order, PartOrder, UnknownOrderError, factors
from tierkv.connectors.vllm.pages.pages import AttentionPages, check_layer
from tierkv.connectors.vllm.pages.specs import Group

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = logging.getLogger("tierkv.shim")

#: Writes keys and values (tokens, heads, dim) into a cache (blocks, heads, tokens, K + V) at slots (tokens).
Writer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]

#: Numbers up to these plus one are exact; in bfloat16 up to 256.
_DIGIT_MAX: Final = 255
_EXACT: Final = {torch.float16: 2047, torch.float32: (1 << 24) - 1}
#: The block of the scratch memory that is written: block 0 stays empty.
_BLOCK: Final = 1


@dataclass(frozen=True)
class Found:
    """A group as this rank's backend has it: `order` of its K and V, or None where its pages are opaque.

    `name`: what the namespace says of its pages; `text`: the same for people.
    """

    group: Group
    order: Order | None
    name: str
    text: str


class Prober:
    """Probes each kind of kernel once. Nothing it does raises, except for tensors that differ from their specs."""

    def __init__(self, config: "VllmConfig", num_blocks: int) -> None:
        self._layers = compat.attention_layers(config)
        self._config = config
        self._num_blocks = num_blocks
        self._orders: dict[Any, Order | str] = {}
        self._seals: dict[Any, str] = {}

    def look(self, group: Group, tensors: Mapping[str, torch.Tensor]) -> Found:
        """Give a group as the backend has it. Raises ValueError when a tensor differs from the spec."""
        if group.is_opaque:
            name = self._name(group, tensors)
            return Found(group, None, name, f"opaque ({name})")
        for name in group.layer_names:
            check_layer(group, name, tensors[name], self._num_blocks)
        orders = {name: self._order(name, group, tensors[name]) for name in group.layer_names}
        first = orders[group.layer_names[0]]
        alike = all(order == first for order in orders.values())
        if alike and isinstance(first, Order):
            return Found(group, first, CANONICAL, str(first))
        why = next((order for order in orders.values() if isinstance(order, str)), "")
        name = self._name(group, tensors)
        opaque = replace(
            group,
            heads=0,
            dim_k=0,
            dim_v=0,
            dtype=torch.uint8,
            page_bytes=(group.layer_bytes,) * len(group.layer_names),
            page_format=name,
        )
        return Found(opaque, None, name, f"opaque: {why or 'its layers differ'} ({name})")

    def _order(self, name: str, group: Group, tensor: torch.Tensor) -> Order | str:
        """Give the order of a layer's pages, or why there is none."""
        layer = self._layers.get(name)
        kernel = compat.kernel(layer)
        stands = (tensor.shape[1:], tensor.stride(), tensor.dtype, tensor.device)
        key = (kernel, group.dim_k, group.dim_v, *stands)
        if key not in self._orders:
            try:
                self._orders[key] = find_order(
                    compat.cache_writer(layer), tensor, group.dim_k, group.dim_v
                )
            except Exception as error:  # noqa: BLE001 - whatever a backend does, the engine starts
                self._orders[key] = f"{type(error).__name__}: {error}"
        return self._orders[key]

    def _name(self, group: Group, tensors: Mapping[str, torch.Tensor]) -> str:
        """Name all that orders the bytes of opaque pages."""
        kinds: dict[str, None] = {}
        for name in group.layer_names:
            tensor = tensors[name]
            layer = self._layers.get(name)
            stands = _standing(tensor)
            seal = self._seal(layer, tensor) if _device(tensor).type == "cpu" else ""
            kinds[" ".join((compat.kernel(layer), *stands, seal)).strip()] = None
        return f"{compat.processor(_device(tensors[group.layer_names[0]]))}: {', '.join(kinds)}"

    def _seal(self, layer: Any, tensor: Any) -> str:
        """Digest what the backend makes of known K and V; empty where it cannot be called so."""
        key = (compat.kernel(layer), *_standing(tensor))
        if key not in self._seals:
            try:
                dtype = self._config.model_config.dtype
                self._seals[key] = seal(compat.cache_writer(layer), tensor, layer, dtype)
            except Exception:  # noqa: BLE001 - a kind of layer with another writer
                self._seals[key] = ""
        return self._seals[key]


def find_order(write: Writer, layer: torch.Tensor, dim_k: int, dim_v: int) -> Order:
    """Find where `write` puts K and V in a page of `layer` (blocks, heads, tokens, K + V), and try it.

    Raises UnknownOrderError where no factors describe it; passes on what `write` raises.
    """
    scratch = _Scratch(layer)
    heads, tokens, _ = layer.shape[1:]
    keys, values = (heads * tokens * dim for dim in (dim_k, dim_v))
    places = scratch.places(write, keys, values, (dim_k, dim_v))
    key = _part(places[:keys].view(tokens, heads, dim_k), layer)
    order = Order(key, _part(places[keys:].view(tokens, heads, dim_v), layer))
    _try(write, layer, order, (dim_k, dim_v))
    return order


class _Scratch:
    """Two blocks of memory with a layer's strides, of which one is written."""

    def __init__(self, layer: torch.Tensor) -> None:
        self.shape = (_BLOCK + 1, *layer.shape[1:])
        self.strides = layer.stride()
        steps = zip(self.shape, self.strides, strict=True)
        self._extent = 1 + sum((size - 1) * stride for size, stride in steps)
        if self._extent * layer.element_size() > limits.PROBE_BYTES_MAX:
            raise UnknownOrderError(
                f"two blocks span {self._extent * layer.element_size()} bytes, "
                f"more than {limits.PROBE_BYTES_MAX}"
            )
        self._like = layer
        self.slots = torch.arange(
            _BLOCK * layer.shape[2], (_BLOCK + 1) * layer.shape[2], device=layer.device
        )

    def zeros(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Give all of new memory, and its two blocks in the layer's shape."""
        flat = torch.zeros(self._extent, dtype=self._like.dtype, device=self._like.device)
        return flat, flat.as_strided(self.shape, self.strides)

    def places(self, write: Writer, keys: int, values: int, dims: tuple[int, int]) -> torch.Tensor:
        """Give where each element of K, then V, (tokens, heads, dim), lies in the written block, from its first."""
        heads, tokens, _ = self.shape[1:]
        count, device = keys + values, self._like.device
        numbers = torch.arange(count, dtype=torch.int32, device=device)
        page = torch.zeros(self._extent, dtype=torch.bool, device=device)
        page.as_strided(self.shape, self.strides)[_BLOCK] = True
        at = page.nonzero().view(-1)
        if len(at) != count:
            raise UnknownOrderError(f"a page has {len(at)} elements, its K and V {count}")
        found = torch.zeros(count, dtype=torch.int32, device=device)
        base, weight = _EXACT.get(self._like.dtype, _DIGIT_MAX), 1
        while weight < count:
            digits = ((numbers // weight) % base + 1).to(self._like.dtype)
            flat, cache = self.zeros()
            key, value = digits[:keys], digits[keys:]
            vectors = (key.view(tokens, heads, dims[0]), value.view(tokens, heads, dims[1]))
            write(*vectors, cache, self.slots)
            if not torch.equal(flat != 0, page):
                raise UnknownOrderError(
                    "it does not write a block's own page, all of it and no more"
                )
            found += (flat[at].to(torch.int32) - 1) * weight
            weight *= base
        places = torch.full((count,), -1, dtype=torch.int64, device=device)
        if int(found.min()) >= 0 and int(found.max()) < count:
            places[found.long()] = at - _BLOCK * self.strides[0]
        if int(places.min()) < 0:
            raise UnknownOrderError("it does not keep each element of K and V once")
        return places.cpu()


def _part(places: torch.Tensor, layer: torch.Tensor) -> PartOrder:
    """Give the order of K or V from the places of its elements (tokens, heads, dim)."""
    first = int(places[0, 0, 0])
    tokens, heads, dims = places[:, 0, 0], places[0, :, 0], places[0, 0, :]
    step = int(heads[1] - heads[0]) if len(heads) > 1 else layer.stride(1)
    steps = torch.arange(len(heads)) * step
    sum_of_all = first + (tokens - first).view(-1, 1, 1) + steps.view(1, -1, 1) + (dims - first)
    if not torch.equal(places, sum_of_all):
        raise UnknownOrderError("tokens, heads and elements do not lie independently")
    found = [factors((axis - first).tolist()) for axis in (tokens, dims)]
    return PartOrder(first, step, found[0], found[1])


def _try(write: Writer, layer: torch.Tensor, order: Order, dims: tuple[int, int]) -> None:
    """Save and restore a page of random K and V through this order."""
    scratch = _Scratch(layer)
    heads, tokens, _ = layer.shape[1:]
    group = Group(0, ("scratch",), tokens, heads, *dims, layer.dtype)
    key, value = (torch.randn(tokens, heads, dim).to(layer.device, layer.dtype) for dim in dims)
    _, cache = scratch.zeros()
    write(key, value, cache, scratch.slots)
    pages = AttentionPages(group, {"scratch": cache}, _BLOCK + 1, order)
    slot = torch.zeros(group.block_bytes, dtype=torch.uint8, device=layer.device)
    pages.copy(_BLOCK, slot, to_slot=True)
    wanted = torch.cat((key, value), -1).transpose(0, 1).unsqueeze(0)
    if not torch.equal(pages.vectors(slot), wanted):
        raise UnknownOrderError("a saved page is not the K and V that were written")
    written = cache.clone()
    cache.zero_()
    pages.copy(_BLOCK, slot, to_slot=False)
    if not torch.equal(cache, written):
        raise UnknownOrderError("a restored page is not the page that was written")


def seal(write: Writer, cache: torch.Tensor, layer: Any, dtype: torch.dtype) -> str:
    """Digest a page as `write` makes it of known K and V of `dtype`; `layer` says how many and how long they are."""
    scratch = _Scratch(cache)
    flat, blocks = scratch.zeros()
    vectors = []
    for start, dim in enumerate(compat.head_sizes(layer)):
        count = len(scratch.slots) * layer.num_kv_heads * dim
        known = (torch.arange(count) * 89 + start) % 241 - 120  # exact in every dtype
        vectors.append((known / 16).to(dtype).view(-1, layer.num_kv_heads, dim))
    key, value = vectors
    write(key, value, blocks, scratch.slots)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def pages_part(found: Sequence[Found]) -> str:
    """Give the ingredient of the namespace that names the pages of all groups."""
    named = {look.group.index: look.name for look in found if look.name != CANONICAL}
    return "; ".join(f"{index}: {name}" for index, name in named.items()) or CANONICAL


def kernels(config: "VllmConfig") -> str:
    """Name the code that writes the pages of a worker's layers, where nothing is put in order."""
    found = sorted({compat.kernel(layer) for layer in compat.attention_layers(config).values()})
    return f"{compat.processor(compat.device(config))}: {', '.join(found)}"


def _device(tensor: Any) -> torch.device:
    return tensor.device if isinstance(tensor, torch.Tensor) else torch.device("meta")


def _standing(tensor: Any) -> tuple[str, ...]:
    """Give a page's shape, strides and type."""
    if not isinstance(tensor, torch.Tensor):
        return (type(tensor).__name__,)
    return str(tuple(tensor.shape[1:])), str(tuple(tensor.stride()[1:])), str(tensor.dtype)
