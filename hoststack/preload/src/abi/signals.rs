// SPDX-License-Identifier: Apache-2.0

//! Calls that set handlers of signals.

use crate::fdtable::fork::in_vfork_child;
use crate::sys::{real, signals};
use libc::{c_int, sighandler_t};

exported! {
    fn sigaction(signal: c_int, wanted: *const libc::sigaction, before: *mut libc::sigaction) -> c_int {
        // SAFETY: the actions are the program's, or null.
        unsafe { signals::set(signal, wanted, before, in_vfork_child) }
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: the handler is a function of the program, or one of the constants.
        unsafe { signals::set_by(signal, in_vfork_child, || real::signal(signal, handler)) }
    }

    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: the handler is a function of the program, or one of the constants.
        unsafe { signals::set_by(signal, in_vfork_child, || real::bsd_signal(signal, handler)) }
    }

    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: the handler is a function of the program, or one of the constants.
        unsafe { signals::set_by(signal, in_vfork_child, || real::ssignal(signal, handler)) }
    }

    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: the handler is a function of the program, or one of the constants.
        unsafe { signals::set_by(signal, in_vfork_child, || real::sysv_signal(signal, handler)) }
    }

    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: the handler is a function of the program, or one of the constants.
        unsafe { signals::set_by(signal, in_vfork_child, || real::__sysv_signal(signal, handler)) }
    }

    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: the handler is a function of the program, or one of the constants.
        unsafe { signals::set_by(signal, in_vfork_child, || real::sigset(signal, handler)) }
    }
}
