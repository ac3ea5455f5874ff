// SPDX-License-Identifier: Apache-2.0

//! What Rust's standard library would bring: memory from the program's C library, and what a panic does.
//!
//! The library needs no other one, so that it loads beside glibc and musl alike: the program's C library has
//! all that is left undefined.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

/// Malloc(3) of the program's C library.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// malloc(3) aligns for all types of C, that is, to 16 octets on x86-64 and aarch64.
const ALIGNED: usize = 16;

// SAFETY: malloc(3) and posix_memalign(3) return memory of the size and alignment that was asked for, or null.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: no preconditions.
            return unsafe { libc::malloc(layout.size()) }.cast();
        }
        let mut made = null_mut();
        // SAFETY: the alignment is a power of two and larger than a pointer.
        let result = unsafe { libc::posix_memalign(&mut made, layout.align(), layout.size()) };
        if result == 0 {
            made.cast()
        } else {
            null_mut()
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: alloc has returned the memory.
        unsafe { libc::free(memory.cast()) };
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! trap {
    () => {
        "ud2"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! trap {
    () => {
        "brk 1"
    };
}

// Rust's core library is compiled for programs that unwind, and refers to what does that; this one never does. The
// names are hidden: programs have their own.
core::arch::global_asm!(
    ".globl _Unwind_Resume",
    ".hidden _Unwind_Resume",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "_Unwind_Resume:",
    "rust_eh_personality:",
    trap!(),
);

/// A panic is a fault of this library. It must not unwind through frames of the program.
#[panic_handler]
fn panic(what: &core::panic::PanicInfo) -> ! {
    crate::sys::report(&alloc::format!("{what}"));
    crate::sys::real::abort()
}
