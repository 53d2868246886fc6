//! Emits what an addon needs from the linker; nothing when the core is built without its binding.

fn main() {
    #[cfg(feature = "napi")]
    napi_build::setup();
}
