// Owns the platforms of the packages: the core's compile target, and each registry's name for the platform.

/** `rust`: the target, with the oldest required glibc on Linux; `name`: napi's name; `npm`: fields that an installer compares. */
export const TARGETS = [
  {
    name: "linux-x64-gnu",
    rust: "x86_64-unknown-linux-gnu.2.28",
    wheel: "manylinux_2_28_x86_64",
    npm: { os: ["linux"], cpu: ["x64"], libc: ["glibc"] },
  },
  {
    name: "linux-arm64-gnu",
    rust: "aarch64-unknown-linux-gnu.2.28",
    wheel: "manylinux_2_28_aarch64",
    npm: { os: ["linux"], cpu: ["arm64"], libc: ["glibc"] },
  },
  {
    name: "linux-x64-musl",
    rust: "x86_64-unknown-linux-musl",
    wheel: "musllinux_1_2_x86_64",
    npm: { os: ["linux"], cpu: ["x64"], libc: ["musl"] },
  },
  {
    name: "linux-arm64-musl",
    rust: "aarch64-unknown-linux-musl",
    wheel: "musllinux_1_2_aarch64",
    npm: { os: ["linux"], cpu: ["arm64"], libc: ["musl"] },
  },
  {
    name: "darwin-arm64",
    rust: "aarch64-apple-darwin",
    wheel: "macosx_11_0_arm64",
    npm: { os: ["darwin"], cpu: ["arm64"] },
  },
];

export const addonName = ({ name }) => `tierkv-core.${name}.node`;
