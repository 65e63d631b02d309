"""Every ceiling of the shim, in one place (docs/architecture.md lists them)."""

from typing import Final

MIB: Final = 1 << 20

#: Version of the frames between shim and sidecar (docs/protocol.md, section 4).
LOCAL_PROTOCOL: Final = 1
#: Largest frame on the local socket, bytes.
FRAME_BYTES_MAX: Final = 4 * MIB
#: Frames waiting to be written to the sidecar; past it the connection is given up (and with it every lease).
SEND_QUEUE_FRAMES_MAX: Final = 4096
#: Bytes waiting to be written to the sidecar.
SEND_QUEUE_BYTES_MAX: Final = 32 * MIB
#: Page bytes copied for saves in one engine step, per rank.
SAVE_BYTES_PER_STEP_MAX: Final = 64 * MIB
#: Page bytes copied for restores in one engine step, per rank.
LOAD_BYTES_PER_STEP_MAX: Final = 64 * MIB
#: Page bytes of saves put off to later steps; they hold references on engine blocks.
SAVE_BACKLOG_BYTES_MAX: Final = 256 * MIB
#: Share of the engine's blocks that put-off saves may hold (1/n).
SAVE_BACKLOG_BLOCKS_FRACTION: Final = 8
#: Requests the shim keeps state for; later ones run untouched.
REQUESTS_MAX: Final = 16384
#: Bytes copied from one weight file for the namespace's fingerprint, and samples of it.
WEIGHT_SAMPLE_BYTES: Final = 64 << 10
WEIGHT_SAMPLES: Final = 16
#: Reconnect back-off, seconds: first wait and ceiling, both jittered.
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0
#: Pause between two attempts to start a sidecar where none answers, seconds; longer than one takes to start.
AUTOSTART_EVERY_S: Final = 30.0
#: Longest wait of the helper thread for the process that detaches it, seconds.
AUTOSTART_LAUNCH_S: Final = 5.0
#: Log of a sidecar we started, bytes; longer ones start anew with the next sidecar.
AUTOSTART_LOG_BYTES_MAX: Final = 8 * MIB
#: Longest wait for the sidecar's `welcome`, seconds.
HELLO_TIMEOUT_S: Final = 5.0
#: A sidecar that owes us an answer for this long is treated as hung, seconds.
PING_EVERY_S: Final = 1.0
SILENCE_MAX_S: Final = 3.0
#: Restore budget used until `welcome` names the configured one, milliseconds.
WAIT_MS_DEFAULT: Final = 5000
STALL_MS_DEFAULT: Final = 400
#: Bytes of an arena mapping made present at a time by the helper thread.
POPULATE_STEP_BYTES: Final = 8 * MIB
#: Arenas a worker keeps mapped: the present one and old ones that loads still read.
ARENAS_MAX: Final = 4
#: How long a step that computes nothing waits for word from the sidecar, seconds: about what a look-up takes.
IDLE_STEP_S: Final = 0.0005
#: Samples kept of the time the engine spends in our calls.
TIMING_SAMPLES_MAX: Final = 8192
#: Restore times kept, per tier, until vLLM's metrics ask for them.
RESTORE_TIMES_MAX: Final = 1024
#: Measured steps that wait to be told to the sidecar.
STEP_SAMPLES_MAX: Final = 256
#: A step is measured when one request computes at least this many tokens: less is decoding.
STEP_TOKENS_MIN: Final = 16
#: Tenants whose numbers are kept, so that they need not be made anew for every block.
TENANTS_REMEMBERED: Final = 4096
#: Plans opened for one admission: the local hit may shrink under pressure, but not for ever.
PLANS_PER_ADMISSION_MAX: Final = 4
