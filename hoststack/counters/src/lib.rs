// SPDX-License-Identifier: Apache-2.0

//! The counters of the preload library, for programs that may run with it or without.

use std::ffi::c_void;

/// The counters of this process since its start.
#[derive(Clone, Copy)]
pub struct Counters {
    /// Ends of connections that have got rings.
    pub attached: u64,
    /// Receives and sends by rings, in octets.
    pub received: u64,
    pub sent: u64,
    /// Connections that were reset because the peer did what it must not.
    pub violations: u64,
}

/// Returns the counters; None without the preload library.
pub fn read() -> Option<Counters> {
    // SAFETY: the name ends with a zero octet.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"beeline_hoststack_counters".as_ptr()) };
    if found.is_null() {
        return None;
    }
    let mut words = [0; 4];
    // SAFETY: the library's function of this name has this signature and stores four numbers.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(*mut u64)>(found)(words.as_mut_ptr()) };
    let [attached, received, sent, violations] = words;
    Some(Counters { attached, received, sent, violations })
}

/// Returns how many ends of connections of this process have got rings; None without the preload library.
pub fn attached() -> Option<u64> {
    read().map(|counters| counters.attached)
}
