"""Registers the connectors by name in every vLLM process (entry point `vllm.general_plugins`)."""

import contextlib


def register() -> None:
    """Make `"kv_connector": "TierKVConnector"` enough; may be called more than once.

    MultiConnector finds a child's statistics by this name only.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import (  # noqa: PLC0415 - vLLM loads plug-ins early
        KVConnectorFactory,
    )

    for name, module in (
        ("TierKVConnector", "connector"),
        ("TierKVOffloadingConnector", "offloading.connector"),
    ):
        with contextlib.suppress(ValueError):  # it is registered already
            KVConnectorFactory.register_connector(name, f"tierkv.connectors.vllm.{module}", name)
