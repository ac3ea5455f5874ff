// SPDX-License-Identifier: Apache-2.0

//! The functions of the C library that this library takes the place of. Each acts on a session, or calls the
//! C library's function if the descriptor has none.
//!
//! Functions with a variable argument list take the last argument as a word: the calling conventions of x86-64 and
//! aarch64 pass it in the same register.

use crate::sys::{errno, real, Outcome};
use libc::{c_int, size_t, ssize_t};

fn answer(result: Outcome) -> ssize_t {
    match result {
        Ok(n) => n as ssize_t,
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

fn answer_int(result: Outcome) -> c_int {
    answer(result) as c_int
}

/// Defines functions under the C library's names.
macro_rules! exported {
    ($($(#[$note:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$note])*
        /// # Safety
        /// As for the function of this name in the C library.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret $body
    )*};
}

/// Ends the program as the C library does when a buffer is too small for a call.
fn checked(count: size_t, size: size_t) -> size_t {
    if count > size {
        real::abort();
    }
    count
}

mod connections;
mod descriptors;
mod events;
mod exec;
mod folders;
mod print;
mod signals;
pub mod syscall;
mod transfers;
