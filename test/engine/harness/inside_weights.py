"""Changes an engine's weights while it runs, as vLLM's users do it, and puts it to sleep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.engine_main import Host

#: Backend's name for `weight_transfer_config`.
BACKEND = "files"


def tensors_of(folder: str) -> Iterator[tuple[str, Any]]:
    """Returns a checkpoint's tensors by name."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        yield from load_file(path).items()


@dataclass
class FolderInfo:
    """Folder that a trainer has written."""

    folder: str = ""


class FileTransfer(WeightTransferEngine[FolderInfo, FolderInfo]):  # type: ignore[misc]
    """Transport that takes weights from a folder, because vLLM's own ones need GPUs."""

    init_info_cls = update_info_cls = FolderInfo

    def init_transfer_engine(self, init_info: FolderInfo) -> None:
        """Does nothing, because a folder needs no connection."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FolderInfo) -> None:
        self.model.load_weights(tensors_of(update_info.folder))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Does nothing, because a folder needs no connection."""


WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)


def _load_as_trainers_do(worker: Any, folder: str) -> None:
    runner = worker.worker.model_runner
    initialize_layerwise_reload(runner.model)
    runner.model.load_weights(tensors_of(folder))
    finalize_layerwise_reload(runner.model, runner.model_config)


def _write_tensors(worker: Any, scale: float) -> None:
    model = worker.worker.model_runner.model
    for name, tensor in model.named_parameters():
        if "layernorm" in name:  # because projections are packed for this CPU elsewhere
            tensor.data.mul_(scale)


def scale_weights(host: Host, scale: float) -> None:
    """Writes into the tensors of the norms, without a call that could be noticed."""
    host.llm.collective_rpc(_write_tensors, args=(scale,))


def change_weights(host: Host, how: str, folder: str = "") -> None:
    """Replaces the weights by the ones in `folder`; `sleep` uses vLLM's level that discards weights first."""
    rpc = host.llm.collective_rpc
    if how == "reload":
        rpc("reload_weights", kwargs={"weights_path": folder})
    elif how == "update":
        rpc("start_weight_update")
        rpc("update_weights", kwargs={"update_info": {"folder": folder}})
        rpc("finish_weight_update")
    else:
        rpc(_load_as_trainers_do, args=(folder,))


def sleep(host: Host, level: int) -> None:
    """Puts the engine to sleep and wakes it up."""
    host.llm.sleep(level)
    host.llm.wake_up()


def reset_all(host: Host) -> bool:
    """Empties the engine's own cache and the connector's, as `POST /reset_prefix_cache?reset_external=true` does."""
    return bool(host.llm.reset_prefix_cache(reset_connector=True))
