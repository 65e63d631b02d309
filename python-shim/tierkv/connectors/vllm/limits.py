"""Every ceiling of the shim, in one place (docs/architecture.md lists them)."""

from typing import Final

MIB: Final = 1 << 20

#: Version of the frames between shim and sidecar (docs/protocol.md, section 4).
LOCAL_PROTOCOL: Final = 2
#: Consecutive blocks of a prompt that lie on one of several vaults: as `src/base/limits/pool.ts` has it.
RUN_BLOCKS: Final = 256
#: Largest frame on the local socket, bytes.
FRAME_BYTES_MAX: Final = 4 * MIB
#: Block hashes of one look-up, all groups together: they are one frame, with room for its other fields.
PLAN_HASHES_MAX: Final = (FRAME_BYTES_MAX - 64 * 1024) // 32
#: A session's name, bytes, and the longest time it is kept: as `src/base/limits/sessions.ts` has them.
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
#: A request waits for another's load of the same prefix for so many times the load's predicted time, and at least so
#: many seconds; then it loads for itself.
FOLLOW_MARGIN: Final = 2.0
FOLLOW_LEAST_S: Final = 0.5
#: A request follows another if what both need, times this, is at least the other's load.
FOLLOW_SHARE: Final = 2
#: Rate of loads that is assumed before one was measured, bytes a second.
LOAD_RATE_FIRST: Final = 1e9
#: Share of the last load in the measured rate.
LOAD_RATE_SHARE: Final = 0.3
#: Plans under way that requests arriving later may share.
PLANS_SHARED_MAX: Final = 1024
#: Longest time to a first token that is reported, seconds: a longer one is a server's clock that differs from ours.
FIRST_TOKEN_S_MAX: Final = 3600.0
#: Bytes of a request's id in frames; ids only help people, plans have numbers.
REQUEST_TEXT_BYTES_MAX: Final = 256
#: Waiting requests with news that one step looks at.
ASKS_PER_STEP_MAX: Final = 32
#: Blocks offered, and looked at, for saves in one engine step; or as many as the step computes, where that is more.
SAVE_ITEMS_PER_STEP_MAX: Final = 128
#: Blocks saved in one step, whatever it computes: they are one frame.
SAVE_ITEMS_PER_FRAME_MAX: Final = 2048
#: Requests whose blocks go on being offered in later steps.
SAVE_RESTS_MAX: Final = 256
#: Blocks remembered as saved, so that a request whose look-up is older does not offer them again.
SAVED_BLOCKS_MAX: Final = 32_768
#: Requests noted on a waiting block, whose loss stops their saves: the last ones that offered it.
SAVE_SHARERS_MAX: Final = 8
#: Actions in a request's `kv_hints` that are looked at.
HINT_ACTIONS_MAX: Final = 16
#: Time without a free slot, seconds, after which waiting saves no longer keep an engine without requests stepping.
SAVE_STALL_S: Final = 5.0
#: Time since the last step with tokens, seconds, after which what waits to be saved is dropped: pausing, sleeping and
#: SIGTERM wait for saves, and Kubernetes ends a pod after 30 s.
SAVE_IDLE_S: Final = 10.0
#: Blocks, and ends of requests, remembered to recognise returning ones (8 and about 120 bytes each).
SEEN_BLOCKS_MAX: Final = 1 << 18
PROMPT_ENDS_MAX: Final = 32_768
#: Least agreement of a recomputed block with an exact record, dB; other weights give 3 or less.
TRUTH_DB_MIN: Final = 12.0
#: The same for lossy records, dB: the worst of 12 layers had 17, because its prefix is lossy, too.
TRUTH_LOSSY_DB_MIN: Final = 6.0
#: Agreement of equal blocks, dB.
TRUTH_DB_MAX: Final = 300.0
#: Requests the shim keeps state for; later requests run untouched.
REQUESTS_MAX: Final = 16384
#: Files of a model; a model with more files has no namespace.
WEIGHT_FILES_MAX: Final = 20_000
#: Threads that read a model's files, and their niceness.
NAMING_THREADS_MAX: Final = 16
NAMING_NICE: Final = 19
#: Bytes of a file read at a time, per thread: they stay in a processor's cache until they are hashed.
NAMING_BUFFER_BYTES: Final = MIB
#: Bytes of a file that have a digest of their own, so that several threads read one file.
NAMING_SEGMENT_BYTES: Final = 64 * MIB
#: Lock files in the state folder by which processes take turns at reading a model; pause between tries, seconds.
NAMING_LOCKS: Final = 16
NAMING_LOCK_POLL_S: Final = 0.05
#: A process that holds such a lock for longer, hung or stopped, is waited for no more, in seconds.
NAMING_LOCK_MAX_S: Final = 120.0
#: Characters of an operator's name for a model's weights: as `src/base/limits/general.ts` has it.
IDENTITY_CHARS_MAX: Final = 256
#: Bytes of a loaded model that are digested at a time; on a GPU five times as many are needed beside them.
MEMORY_PART_BYTES: Final = 16 * MIB
#: Longest wait for the digest of a model that was just loaded, seconds; without it a reset begins a new generation.
MEMORY_WAIT_S: Final = 60.0
#: Folders above a file that may hold a download's notes, and the bytes of a note.
LOCAL_DEPTH_MAX: Final = 4
LOCAL_NOTE_BYTES_MAX: Final = 1024
#: Longest wait of the helper thread for a small model's name before the first look-up, seconds.
NAMING_START_WAIT_S: Final = 1.0
#: Tokens of the longest block of another engine that is cut into this engine's own.
LONGER_TOKENS_MAX: Final = 4096
#: Pause between two log lines on the progress of naming, seconds.
NAMING_LOG_EVERY_S: Final = 10.0
#: Characters of the reason for a missing name.
REFUSAL_TEXT_MAX: Final = 200
#: A model's file may change this long after the engine's process began, nanoseconds, because clocks are coarse.
NAMING_CLOCK_MARGIN_NS: Final = 1_000_000_000
#: Digests of files kept in the state folder, and the most bytes of that file that are read.
DIGESTS_KEPT_MAX: Final = 20_000
DIGESTS_BYTES_MAX: Final = 64 * MIB
#: A digest is kept if the file was unchanged for this long before it was read, nanoseconds.
DIGEST_SETTLED_NS: Final = 2_000_000_000
#: Reconnect back-off, seconds: first wait and ceiling, both jittered.
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0
#: The ceiling while the first sidecar may still be starting.
RECONNECT_YOUNG_S: Final = 0.2
#: The ceiling after a refusal, whose cause does not change by itself.
RECONNECT_REFUSED_MAX_S: Final = 30.0
#: Causes of refusals that are logged; each once.
REFUSALS_SAID_MAX: Final = 64
#: Pause between two attempts to start a sidecar where none answers, seconds; longer than one takes to start.
AUTOSTART_EVERY_S: Final = 30.0
#: No sidecar is started for this long after one has gone, seconds, because its supervisor may be restarting it.
AUTOSTART_GRACE_S: Final = 5.0
#: Longest wait of the helper thread for the process that detaches it, seconds.
AUTOSTART_LAUNCH_S: Final = 5.0
#: Log of a sidecar we started, bytes; longer ones start anew with the next sidecar.
AUTOSTART_LOG_BYTES_MAX: Final = 8 * MIB
#: Longest wait for the sidecar's `welcome`, seconds.
HELLO_TIMEOUT_S: Final = 5.0
#: A sidecar that owes us an answer for this long is treated as hung, seconds.
PING_EVERY_S: Final = 1.0
#: Time in which a sidecar that an engine or a service starts may be absent without a warning, seconds.
SIDECAR_START_S: Final = 30.0
SILENCE_MAX_S: Final = 3.0
#: Restore budget used until `welcome` names the configured one, milliseconds.
WAIT_MS_DEFAULT: Final = 5000
STALL_MS_DEFAULT: Final = 400
#: Longest time without room for a request before its restore budget begins all the same, seconds.
NO_ROOM_WAIT_S: Final = 30.0
#: Bytes of an arena mapping made present at a time by the helper thread.
POPULATE_STEP_BYTES: Final = 8 * MIB
#: Bytes of an arena that a GPU pins at a time, whole slots: all of it in one call would take seconds.
PIN_BYTES: Final = 256 * MIB
#: Attempts to pin pieces that CUDA refused, and the pause before each, seconds.
PIN_TRIES_MAX: Final = 8
PIN_RETRY_S: Final = 2.0
#: Bytes of a buffer on the GPU that a copy of many blocks passes through; each direction has two.
ROWS_BYTES_MAX: Final = 32 * MIB
#: Arenas a worker keeps mapped: the present one and old ones that loads still read.
ARENAS_MAX: Final = 4
#: Descriptors that may wait for the frames they belong to, on one connection.
DESCRIPTORS_MAX: Final = 4
#: How long a step that computes nothing waits for a frame, seconds: about the time of a look-up.
IDLE_STEP_S: Final = 0.0005
#: Restore times kept, per tier, until vLLM's metrics ask for them.
RESTORE_TIMES_MAX: Final = 1024
#: Measured steps that wait to be reported to the sidecar.
STEP_SAMPLES_MAX: Final = 256
#: A step is measured when one request computes at least this many tokens: less is decoding.
STEP_TOKENS_MIN: Final = 16
#: Tokens that restores leave to compute on a CPU with AMX until a step of as many has run; smaller steps kill engines.
AMX_FIRST_TOKENS: Final = 64
#: Tenants whose numbers are cached, so that they are not computed for every block.
TENANTS_REMEMBERED: Final = 4096
#: Requests without a look-up whose reason waits to be reported to the sidecar.
UNASKED_ROWS_MAX: Final = 64
#: Prompts that wait to be compared with earlier ones, and their tokens: more in a second are not compared.
PROMPTS_COMPARED_MAX: Final = 64
PROMPT_TOKENS_WAITING_MAX: Final = 1 << 20
#: Prompts kept for comparison with later ones, and the bytes of their token ids, 4 each.
PROMPTS_KEPT_MAX: Final = 128
PROMPT_BYTES_KEPT_MAX: Final = 8 * MIB
#: Tokens shown on each side of a prompt's first difference to an earlier one, and of the message's beginning.
DIVERGENCE_TOKENS_SHOWN: Final = 24
DIVERGENCE_HEAD_TOKENS: Final = 8
DIVERGENCE_MARKERS: Final = 2
#: Tokens that must be equal behind a difference, and tokens in which they are searched for.
DIVERGENCE_NEEDLE_TOKENS: Final = 16
DIVERGENCE_SEARCHED_MAX: Final = 16_384
#: Bytes at the beginning of a `tokenizer.json` that hold its added tokens.
TOKENIZER_HEAD_BYTES: Final = MIB
#: Characters of a client's `traceparent`; today's version has 55.
TRACEPARENT_CHARS_MAX: Final = 64
#: Blocks that events describe, at most: claimed, and waiting to be. Each holds its tokens.
EVENT_BLOCKS_MAX: Final = 32_768
#: Blocks of one audit; one audit a second.
AUDIT_BLOCKS_MAX: Final = 4096
#: Consecutive audits after which a block that no vault holds is forgotten.
AUDITS_UNHELD_MAX: Final = 30
#: Seconds after which subscribers are sent the blocks' name again, because one may have joined since.
EVENT_NAME_EVERY_S: Final = 10.0
#: Bytes of the scratch memory in which a backend's order of K and V is found; two blocks with all between them.
PROBE_BYTES_MAX: Final = 64 << 20
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
#: Blocks known to be in a vault, which are not offered again.
MLX_KNOWN_BLOCKS_MAX: Final = 65_536
#: How long a save waits for a free slot, seconds; then the rest of the prompt is dropped.
MLX_SLOT_WAIT_S: Final = 1.0
#: Wait for the sidecar's answer beyond its own deadline, seconds.
MLX_PLAN_MARGIN_S: Final = 0.5
#: Pause between two checks whether an engine can restore, seconds.
MLX_POLL_S: Final = 0.05
#: Jobs of vLLM's own offloading that wait to be stored; each pins chunks of its primary tier.
TIER_STORES_MAX: Final = 256
#: How long such a tier's end waits for its copies, seconds.
TIER_CLOSE_S: Final = 5.0
#: How long HiCache's thread for look-ups waits for the sidecar's answer, seconds: all requests wait for that thread.
SGLANG_LOOKUP_S: Final = 1.0
#: How long its thread for reads waits for the next page, and for all pages of a call, seconds.
SGLANG_STALL_S: Final = 1.0
SGLANG_READ_S: Final = 5.0
#: How long its thread for writes waits for free slots, seconds a call; then the rest of the call's pages is dropped.
SGLANG_WRITE_S: Final = 1.0
#: Pages that are handed over at a time.
SGLANG_SAVE_PAGES: Final = 32
#: Look-ups whose pages SGLang has not read yet: how long they are kept, seconds, because it never tells which it gives
#: up, and how many.
SGLANG_PLAN_KEPT_S: Final = 10.0
SGLANG_PLANS_MAX: Final = 64
