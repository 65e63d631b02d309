//! Owns the linker arguments that a Node-API addon needs.

fn main() {
    napi_build::setup();
}
