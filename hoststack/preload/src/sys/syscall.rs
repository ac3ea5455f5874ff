// SPDX-License-Identifier: Apache-2.0

//! System calls without the C library.

use crate::sys::{errno, Errno};
use core::arch::asm;
use libc::c_long;

/// Asks the kernel, and sets errno as syscall(3) does.
///
/// # Safety
/// As for the system call of this number.
pub unsafe fn direct(number: c_long, arguments: [usize; 6]) -> c_long {
    // SAFETY: as the caller's.
    let result = unsafe { enter(number, arguments) };
    if (-4095..0).contains(&result) {
        errno::set(Errno(-result as i32));
        return -1;
    }
    result
}

#[cfg(target_arch = "x86_64")]
unsafe fn enter(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let result;
    // SAFETY: the kernel's calling convention; it changes rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn enter(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let result;
    // SAFETY: the kernel's calling convention.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e,
            in("x5") f, options(nostack));
    }
    result
}
