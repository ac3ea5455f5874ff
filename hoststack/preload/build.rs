// SPDX-License-Identifier: Apache-2.0

//! The library is linked without any other one, also without the C compiler's own.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-nostdlib");
    println!("cargo:rerun-if-changed=build.rs");
}
