"""Every ceiling of the shim, in one place (docs/architecture.md lists them)."""

from typing import Final

MIB: Final = 1 << 20

#: Version of the frames between shim and sidecar (docs/protocol.md, section 4).
LOCAL_PROTOCOL: Final = 2
#: Consecutive blocks of a prompt that lie on one of several vaults: as `src/limits/pool.ts` has it.
RUN_BLOCKS: Final = 256
#: Largest frame on the local socket, bytes.
FRAME_BYTES_MAX: Final = 4 * MIB
#: Block hashes of one look-up, all groups together: they are one frame, with room for its other fields.
PLAN_HASHES_MAX: Final = (FRAME_BYTES_MAX - 64 * 1024) // 32
#: A session's name, bytes, and the longest time it is kept: as `src/limits/sessions.ts` has them.
SESSION_NAME_BYTES_MAX: Final = 128
KEEP_S_MAX: Final = 604_800
#: Frames waiting to be written to the sidecar; past it the connection is given up (and with it every lease).
SEND_QUEUE_FRAMES_MAX: Final = 4096
#: Bytes waiting to be written to the sidecar.
SEND_QUEUE_BYTES_MAX: Final = 32 * MIB
#: Page bytes copied for saves in one engine step, per rank; or as many as the step computes, where that is more.
SAVE_BYTES_PER_STEP_MAX: Final = 64 * MIB
#: Page bytes copied for restores in one engine step, per rank.
LOAD_BYTES_PER_STEP_MAX: Final = 64 * MIB
#: Waiting requests with news that one step looks at.
ASKS_PER_STEP_MAX: Final = 32
#: Blocks offered, and looked at, for saves in one engine step; or as many as the step computes, where that is more.
SAVE_ITEMS_PER_STEP_MAX: Final = 128
#: Blocks saved in one step, whatever it computes: they are one frame.
SAVE_ITEMS_PER_FRAME_MAX: Final = 2048
#: Requests whose blocks go on being offered in later steps.
SAVE_RESTS_MAX: Final = 256
#: Requests that hear of a block's loss: the last ones that offered it while it waited.
SAVE_SHARERS_MAX: Final = 8
#: Blocks that wait to be saved keep an engine without requests stepping until no slot came free for this time, seconds.
SAVE_STALL_S: Final = 5.0
#: Blocks, and ends of requests, remembered to tell what comes again from what comes once (8 and about 120 bytes each).
SEEN_BLOCKS_MAX: Final = 1 << 18
PROMPT_ENDS_MAX: Final = 32_768
#: A block computed again agrees with exact records at least so far, dB; blocks of other weights have 3 or less.
TRUTH_DB_MIN: Final = 12.0
#: The same of lossy records, dB: 17 was seen in the worst of 12 layers, because the prefix it stands on is lossy too.
TRUTH_LOSSY_DB_MIN: Final = 6.0
#: Equal blocks, dB.
TRUTH_DB_MAX: Final = 300.0
#: Requests the shim keeps state for; later ones run untouched.
REQUESTS_MAX: Final = 16384
#: Files of a model; one with more has no name.
WEIGHT_FILES_MAX: Final = 20_000
#: Threads that read a model's files, and their niceness.
NAMING_THREADS_MAX: Final = 4
NAMING_NICE: Final = 19
#: Bytes of a file read at a time, per thread.
NAMING_BUFFER_BYTES: Final = 4 * MIB
#: How long the helper thread waits for the name of a small model before anything is asked, seconds.
NAMING_START_WAIT_S: Final = 1.0
#: Tokens of the longest block of another engine that is cut into this engine's own.
LONGER_TOKENS_MAX: Final = 4096
#: Pause between two lines of the log that say how far the name is, seconds.
NAMING_LOG_EVERY_S: Final = 10.0
#: Characters of the reason for there being no name.
REFUSAL_TEXT_MAX: Final = 200
#: A model's file may have been changed so long after the engine's process began, nanoseconds: clocks are coarse.
NAMING_CLOCK_MARGIN_NS: Final = 1_000_000_000
#: Digests of files kept in the state folder, and the most bytes of that file that are read.
DIGESTS_KEPT_MAX: Final = 20_000
DIGESTS_BYTES_MAX: Final = 64 * MIB
#: A digest is kept when the file had not been changed for so long before it was read, nanoseconds.
DIGEST_SETTLED_NS: Final = 2_000_000_000
#: Reconnect back-off, seconds: first wait and ceiling, both jittered.
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0
#: The ceiling where the sidecar refused us: what it refuses for does not change by itself.
RECONNECT_REFUSED_MAX_S: Final = 30.0
#: Causes of refusals that are logged; each once.
REFUSALS_SAID_MAX: Final = 64
#: Pause between two attempts to start a sidecar where none answers, seconds; longer than one takes to start.
AUTOSTART_EVERY_S: Final = 30.0
#: A sidecar that has gone may be in the middle of a restart by whoever runs it: none is started for so long, seconds.
AUTOSTART_GRACE_S: Final = 5.0
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
#: How long vLLM may ask for a request that it has no room for before the restore budget begins all the same, seconds.
NO_ROOM_WAIT_S: Final = 30.0
#: Bytes of an arena mapping made present at a time by the helper thread.
POPULATE_STEP_BYTES: Final = 8 * MIB
#: Bytes of an arena that a GPU pins at a time, whole slots: all of it in one call would take seconds.
PIN_BYTES: Final = 256 * MIB
#: Bytes of a buffer on the GPU that a copy of many blocks passes through; each direction has two.
ROWS_BYTES_MAX: Final = 32 * MIB
#: Arenas a worker keeps mapped: the present one and old ones that loads still read.
ARENAS_MAX: Final = 4
#: Descriptors that may wait for the frames they belong to, on one connection.
DESCRIPTORS_MAX: Final = 4
#: How long a step that computes nothing waits for word from the sidecar, seconds: about what a look-up takes.
IDLE_STEP_S: Final = 0.0005
#: Restore times kept, per tier, until vLLM's metrics ask for them.
RESTORE_TIMES_MAX: Final = 1024
#: Measured steps that wait to be told to the sidecar.
STEP_SAMPLES_MAX: Final = 256
#: A step is measured when one request computes at least this many tokens: less is decoding.
STEP_TOKENS_MIN: Final = 16
#: Tokens left to compute on a CPU with AMX until a step of so many has run: fewer have killed fresh engines.
AMX_FIRST_TOKENS: Final = 64
#: Tenants whose numbers are kept, so that they need not be made anew for every block.
TENANTS_REMEMBERED: Final = 4096
#: Requests that nothing was asked for, until the sidecar is told why.
UNASKED_ROWS_MAX: Final = 64
#: Of a client's `traceparent`; today's version has 55.
TRACEPARENT_CHARS_MAX: Final = 64
#: Blocks that events describe, at most: claimed, and waiting to be. Each holds its tokens.
EVENT_BLOCKS_MAX: Final = 32_768
#: Blocks that one question to the vaults names; one question a second.
AUDIT_BLOCKS_MAX: Final = 4096
#: Questions in a row after which a block that no vault holds is forgotten.
AUDITS_UNHELD_MAX: Final = 30
#: Seconds after which subscribers are told again by what vaults know the engine's blocks: one may have come meanwhile.
EVENT_NAME_EVERY_S: Final = 10.0
#: Plans opened for one admission: the local hit may shrink under pressure, but not for ever.
PLANS_PER_ADMISSION_MAX: Final = 4
#: Tokens of one block of mlx-lm's caches; its own grow by as many.
MLX_CHUNK_TOKENS: Final = 256
#: Tokens that are computed in one step where states must be saved at a boundary; whole chunks.
MLX_PREFILL_TOKENS: Final = 2048
#: The longest prompt that the sidecar plans an arena for.
MLX_PROMPT_TOKENS: Final = 32_768
#: Levels of a model's modules.
MLX_MODULE_DEPTH_MAX: Final = 64
#: Blocks that are known to be in a vault, so that they are not offered again.
MLX_KNOWN_BLOCKS_MAX: Final = 65_536
#: How long a save waits for a free slot, seconds; then the rest of the prompt is dropped.
MLX_SLOT_WAIT_S: Final = 1.0
#: How much longer than the sidecar's own deadline its answer is waited for, seconds.
MLX_PLAN_MARGIN_S: Final = 0.5
#: Pause between two looks at whether an engine can restore, seconds.
MLX_POLL_S: Final = 0.05
#: Jobs of vLLM's own offloading that wait to be stored; each pins chunks of its primary tier.
TIER_STORES_MAX: Final = 256
#: How long the end of such a tier waits for what it copies, seconds.
TIER_CLOSE_S: Final = 5.0
