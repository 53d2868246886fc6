//! Emits what an addon needs from the linker, and puts launcher and zygote library where the core includes them from.

#![expect(clippy::disallowed_methods, reason = "cargo tells a build script by variables what is to be built")]

use std::{env, fs, path::PathBuf};

/// The folder with both, for a build that is to carry them.
const FOLDER: &str = "NSE_COMPANIONS";

fn main() {
    #[cfg(feature = "napi")]
    napi_build::setup();
    companions();
}

/// Empty files where the build is to carry none: tests of the core name their launcher.
fn companions() {
    println!("cargo::rerun-if-env-changed={FOLDER}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let embed = env::var_os("CARGO_FEATURE_COMPANIONS").is_some();
    let linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    for name in ["launcher", "zygote"] {
        let place = out.join(name);
        if embed && linux {
            let folder = env::var_os(FOLDER);
            let folder =
                folder.expect("the feature companions needs NSE_COMPANIONS: build by `npm run build`");
            let file = PathBuf::from(folder).join(name);
            println!("cargo::rerun-if-changed={}", file.display());
            fs::copy(&file, &place).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        } else {
            fs::write(&place, []).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
        }
    }
}
