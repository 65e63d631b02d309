// Owns the gRPC channel and server options: sizes, windows, keepalive; compression stays off on both sides.
import type { ChannelOptions, ServerOptions } from "@grpc/grpc-js";
import {
  FLOW_WINDOW_BYTES,
  KEEPALIVE_TIME_MS,
  KEEPALIVE_TIMEOUT_MS,
  MESSAGE_BYTES_MAX,
  RECONNECT_MAX_MS,
  RECONNECT_MIN_MS,
  STREAMS_MAX,
} from "../base/limits/general.ts";

// Pings find dead peers (half-open TCP, a stopped process), also while no call runs.
const COMMON: ChannelOptions = {
  "grpc.max_send_message_length": MESSAGE_BYTES_MAX,
  "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
  "grpc.keepalive_time_ms": KEEPALIVE_TIME_MS,
  "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
  "grpc.keepalive_permit_without_calls": 1,
  "grpc.enable_channelz": 0,
};

export function serverOptions(): ServerOptions {
  return { ...COMMON, "grpc.max_concurrent_streams": STREAMS_MAX };
}

/** One connection per channel, straight to the vault: no shared subchannels, no HTTP proxy, no retries that keep copies. */
export function channelOptions(): ChannelOptions {
  return {
    ...COMMON,
    "grpc-node.flow_control_window": FLOW_WINDOW_BYTES,
    "grpc.initial_reconnect_backoff_ms": RECONNECT_MIN_MS,
    "grpc.max_reconnect_backoff_ms": RECONNECT_MAX_MS,
    "grpc.use_local_subchannel_pool": 1,
    "grpc.enable_http_proxy": 0,
    "grpc.enable_retries": 0,
    "grpc.service_config_disable_resolution": 1,
  };
}
