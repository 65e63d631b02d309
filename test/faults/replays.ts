// Owns the list of bugs that could have served wrong bytes, stopped an engine or let somebody in: fixed, each with the test that is about it.

export interface Replay {
  /** That fixed it. */
  commit: string;
  bug: string;
  /** File and title; null: there is none. */
  test: readonly [file: string, title: string] | null;
}

export const REPLAYS: readonly Replay[] = [
  {
    commit: "5012747",
    bug: "a frame that is no valid text ended the shim's helper thread",
    test: [
      "python-shim/tests/test_frames.py",
      "test_garbage_never_raises_anything_but_a_frame_error",
    ],
  },
  {
    commit: "9c46df5",
    bug: "a welcome that cannot be used ended the shim's helper thread",
    test: [
      "python-shim/tests/test_channel.py",
      "test_f24_a_welcome_our_side_cannot_use_is_no_connection",
    ],
  },
  {
    commit: "ead2b0e",
    bug: "a fetch that was cancelled wrote on what it had been given",
    test: [
      "test/sidecar/restore/window.test.ts",
      "after the end everything is given back, and what comes then is nobody's",
    ],
  },
  {
    commit: "699aba7",
    bug: "a plan that ended while its blocks were taken forgot what it had told",
    test: [
      "test/sidecar/restore/restore.turns.test.ts",
      "a plan whose deadline comes in any turn of the loop holds exactly what was told",
    ],
  },
  {
    commit: "ae95a2b",
    bug: "blocks placed between two looks of the engine's thread made a restore a miss",
    test: [
      "python-shim/tests/test_scheduler.py",
      "test_blocks_that_arrive_while_they_are_counted_are_not_missed",
    ],
  },
  {
    commit: "42f6860",
    bug: "a save that had waited its longest left something behind for each wait",
    test: [
      "test/sidecar/vaults/fetch-priority.test.ts",
      "a save goes on after its longest wait although a restore never ends",
    ],
  },
  {
    commit: "3f88007",
    bug: "the lanes of a vault behind TLS were open in the clear",
    test: [
      "test/vault/server.lanes.test.ts",
      "a token that was overheard is of no use in the clear",
    ],
  },
  {
    commit: "f30ca65",
    bug: "the socket of the lanes had a mode of its own",
    test: [
      "test/cli/main.exposure.test.ts",
      "a sidecar with a vault of its own listens on private sockets alone",
    ],
  },
  {
    commit: "1425a95",
    bug: "one address could take all places at a vault",
    test: ["test/vault/server.overload.test.ts", "F36 one address has half of the places at most"],
  },
  {
    commit: "15ac37c",
    bug: "a call whose first message never comes kept its place",
    test: [
      "test/vault/server.overload.test.ts",
      "those that never say what they announce to be cut",
    ],
  },
  {
    commit: "5687182",
    bug: "a name that begins with 127. passed for the loopback",
    test: ["test/hosts.test.ts", "a name that looks like a loopback address is none"],
  },
  {
    commit: "5687182",
    bug: "tenants beyond the table had a quota each while they arrived",
    test: [
      "crates/core/tests/store_tenants.rs",
      "f41_tenants_beyond_the_table_share_one_quota_of_what_is_on_its_way",
    ],
  },
  {
    commit: "d6e7598",
    bug: "under TLS an alert overtook what had come before it",
    test: ["crates/core/src/lane/tls/tests.rs", "what_came_before_an_alert_is_read_first"],
  },
];
