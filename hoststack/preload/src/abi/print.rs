// SPDX-License-Identifier: Apache-2.0

//! dprintf(3): the C library formats, and would write without the functions of this library.

use super::transfers::write;
use crate::fdtable::table;
use crate::sys::{errno, real};
use core::ptr::null_mut;
use libc::{c_char, c_int, c_void};

type Text = *const c_char;

/// A va_list as functions get it: on x86-64 and aarch64 the address of a structure.
type List = *mut c_void;

extern "C" {
    fn vasprintf(to: *mut *mut c_char, format: Text, list: List) -> c_int;
}

exported! {
    fn vdprintf(fd: c_int, format: Text, list: List) -> c_int {
        match table::session(fd) {
            // SAFETY: the format and the list are the program's.
            Some(_) => unsafe { print(fd, format, list) },
            // SAFETY: as above.
            None => unsafe { real::vdprintf(fd, format, list) },
        }
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: Text, list: List) -> c_int {
        match table::session(fd) {
            // SAFETY: the format and the list are the program's.
            Some(_) => unsafe { print(fd, format, list) },
            // SAFETY: as above.
            None => unsafe { real::__vdprintf_chk(fd, flag, format, list) },
        }
    }
}

/// Formats into memory, and writes that to a session.
///
/// # Safety
/// As for vdprintf.
unsafe fn print(fd: c_int, format: Text, list: List) -> c_int {
    let mut text = null_mut();
    // SAFETY: the format and the list are the caller's.
    let length = unsafe { vasprintf(&mut text, format, list) };
    if length < 0 {
        return -1;
    }
    // SAFETY: vasprintf has stored so many octets.
    let result = unsafe { write_all(fd, text.cast(), length as usize) };
    let error = errno::last();
    // SAFETY: as above; no one else has the text.
    unsafe { libc::free(text.cast()) };
    errno::set(error);
    match result {
        true => length,
        false => -1,
    }
}

/// # Safety
/// `text` leads to `length` octets.
unsafe fn write_all(fd: c_int, text: *const c_void, length: usize) -> bool {
    let mut done = 0;
    while done < length {
        // SAFETY: so many octets are left.
        let n = unsafe { write(fd, text.add(done), length - done) };
        if n < 0 {
            return false;
        }
        done += n as usize;
    }
    true
}

/// Defines a function with a variable argument list, which Rust cannot: it stores the registers that have
/// arguments and calls `$to`, whose last argument is a va_list of those behind the first `$named`.
macro_rules! with_list {
    ($($name:ident, $named:literal, $x86:literal, $arm:literal => $to:ident;)*) => {$(
        /// # Safety
        /// As for the function of this name in the C library.
        #[no_mangle]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "sub rsp, 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al", // whether registers have floating-point numbers
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                "mov dword ptr [rsp], 8 * {named}", // gp_offset
                "mov dword ptr [rsp + 4], 48", // fp_offset
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax", // overflow_arg_area
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax", // reg_save_area
                concat!("mov ", $x86, ", rsp"),
                "call {to}",
                "add rsp, 216",
                "ret",
                named = const $named,
                to = sym $to,
            )
        }

        /// # Safety
        /// As for the function of this name in the C library.
        #[no_mangle]
        #[unsafe(naked)]
        #[cfg(target_arch = "aarch64")]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-240]!",
                "stp x0, x1, [sp, #48]",
                "stp x2, x3, [sp, #64]",
                "stp x4, x5, [sp, #80]",
                "stp x6, x7, [sp, #96]",
                "stp q0, q1, [sp, #112]",
                "stp q2, q3, [sp, #144]",
                "stp q4, q5, [sp, #176]",
                "stp q6, q7, [sp, #208]",
                "add x9, sp, #240",
                "str x9, [sp, #16]", // __stack
                "add x10, sp, #112",
                "str x10, [sp, #24]", // __gr_top
                "str x9, [sp, #32]", // __vr_top
                "mov w9, #-8 * (8 - {named})",
                "str w9, [sp, #40]", // __gr_offs
                "mov w9, #-128",
                "str w9, [sp, #44]", // __vr_offs
                concat!("add ", $arm, ", sp, #16"),
                "bl {to}",
                "ldp x29, x30, [sp], #240",
                "ret",
                named = const $named,
                to = sym $to,
            )
        }
    )*};
}

with_list! {
    dprintf, 2, "rdx", "x2" => vdprintf;
    __dprintf_chk, 3, "rcx", "x3" => __vdprintf_chk;
}
