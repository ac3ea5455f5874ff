// SPDX-License-Identifier: Apache-2.0

//! Another program in place of this one, or beside it: it inherits connections, but not their rings. They continue on
//! the kernel's connection, with what was not read; if the peer does not send that again, the call is refused.

use crate::fdtable::{descriptors, fork, reuse, table};
use crate::sys::errno::{self, EBUSY};
use crate::sys::real;
use crate::sys::syscall::direct;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_char, c_int, c_void, pid_t, FILE};

type Text = *const c_char;
type List = *const Text;

exported! {
    fn execve(path: Text, arguments: List, environment: List) -> c_int {
        if !may_execute() {
            return refused(-1);
        }
        // SAFETY: the path and both lists are the program's.
        unsafe { real::execve(path, arguments, environment) }
    }

    fn execv(path: Text, arguments: List) -> c_int {
        // SAFETY: the lists are the program's and the C library's.
        unsafe { execve(path, arguments, environ) }
    }

    fn execvpe(path: Text, arguments: List, environment: List) -> c_int {
        if !may_execute() {
            return refused(-1);
        }
        // SAFETY: the path and both lists are the program's.
        unsafe { real::execvpe(path, arguments, environment) }
    }

    fn execvp(path: Text, arguments: List) -> c_int {
        // SAFETY: the lists are the program's and the C library's.
        unsafe { execvpe(path, arguments, environ) }
    }

    fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
        if !may_execute() {
            return refused(-1);
        }
        // SAFETY: both lists are the program's.
        unsafe { real::fexecve(fd, arguments, environment) }
    }

    fn execveat(folder: c_int, path: Text, arguments: List, environment: List, flags: c_int) -> c_int {
        if !may_execute() {
            return refused(-1);
        }
        // Not every C library has it.
        let words = [folder as usize, path as usize, arguments as usize, environment as usize, flags as usize, 0];
        // SAFETY: the path and both lists are the program's.
        unsafe { direct(libc::SYS_execveat, words) as c_int }
    }

    fn posix_spawn(child: *mut pid_t, path: Text, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List) -> c_int {
        if !may_execute() {
            return EBUSY.0;
        }
        // SAFETY: all addresses are the program's.
        unsafe { real::posix_spawn(child, path, actions, attributes, arguments, environment) }
    }

    fn posix_spawnp(child: *mut pid_t, path: Text, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List) -> c_int {
        if !may_execute() {
            return EBUSY.0;
        }
        // SAFETY: all addresses are the program's.
        unsafe { real::posix_spawnp(child, path, actions, attributes, arguments, environment) }
    }

    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int {
        if !descriptors::leave_rings(from) {
            complain(from);
            return EBUSY.0;
        }
        // SAFETY: the actions are the program's.
        unsafe { real::posix_spawn_file_actions_adddup2(actions, from, to) }
    }

    /// fork(2) without the handlers of pthread_atfork(3).
    fn _Fork() -> c_int {
        fork::make(0, || real::_Fork() as isize) as c_int
    }

    fn clone(start: *const c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void, tls: *mut c_void, child: *mut c_void) -> c_int {
        if flags & libc::CLONE_VM != 0 || start.is_null() {
            fork::shares(flags as u64);
            // SAFETY: the function and all addresses are the program's.
            return unsafe { real::clone(start, stack, flags, argument, parent, tls, child) };
        }
        // SAFETY: the program's function for a child has this signature. The child has a copy of this stack, too.
        let begin = Begin { start: unsafe { core::mem::transmute::<*const c_void, Start>(start) }, argument };
        let place = core::ptr::from_ref(&begin).cast_mut().cast();
        let start = in_copy as *const c_void;
        // SAFETY: in_copy gets what it is to begin with; the other addresses are the program's.
        let call = || unsafe { real::clone(start, stack, flags, place, parent, tls, child) as isize };
        fork::make(flags as u64, call) as c_int
    }

    fn system(command: Text) -> c_int {
        if !command.is_null() && !may_execute() {
            return refused(-1);
        }
        // SAFETY: the command is the program's, or null.
        unsafe { real::system(command) }
    }

    fn popen(command: Text, mode: Text) -> *mut FILE {
        if !may_execute() {
            return refused(core::ptr::null_mut());
        }
        // SAFETY: the command and the mode are the program's.
        unsafe { real::popen(command, mode) }
    }
}

type Start = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What a child of clone(3) begins with.
struct Begin {
    start: Start,
    argument: *mut c_void,
}

unsafe extern "C" fn in_copy(begin: *const Begin) -> c_int {
    fork::in_child();
    // SAFETY: clone's caller has given both.
    unsafe { ((*begin).start)((*begin).argument) }
}

extern "C" {
    static environ: List;
}

/// Defines a function whose arguments are a list that ends with a null pointer. Rust cannot define functions with a
/// variable argument list, so those in registers are stored below those on the stack, and `$to` gets their address.
macro_rules! listed {
    ($($name:ident => $to:ident;)*) => {$(
        /// # Safety
        /// As for the function of this name in the C library.
        #[no_mangle]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "pop rax", // the return address, which is between both
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {to}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
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
                "stp x29, x30, [sp, #-80]!",
                "stp x1, x2, [sp, #24]",
                "stp x3, x4, [sp, #40]",
                "stp x5, x6, [sp, #56]",
                "str x7, [sp, #72]",
                "add x1, sp, #24",
                "bl {to}",
                "ldp x29, x30, [sp], #80",
                "ret",
                to = sym $to,
            )
        }
    )*};
}

listed! {
    execl => list_execl;
    execle => list_execle;
    execlp => list_execlp;
}

unsafe extern "C" fn list_execl(path: Text, arguments: List) -> c_int {
    // SAFETY: as execl's caller.
    unsafe { execve(path, arguments, environ) }
}

unsafe extern "C" fn list_execle(path: Text, arguments: List) -> c_int {
    // SAFETY: the environment follows the null pointer that ends the list.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, *end.add(1).cast::<List>())
    }
}

unsafe extern "C" fn list_execlp(path: Text, arguments: List) -> c_int {
    // SAFETY: as execlp's caller.
    unsafe { execvpe(path, arguments, environ) }
}

/// Makes connections leave their rings that stay open over exec; false if one of them cannot.
fn may_execute() -> bool {
    let stuck = table::descriptors().find(|&fd| inherits(fd) && !leaves(fd));
    stuck.inspect(|&fd| complain(fd)).is_none()
}

/// Returns whether another program would get a descriptor that is, or may be, a session.
fn inherits(fd: c_int) -> bool {
    if !fork::in_vfork_child() && table::session(fd).is_none() {
        return false;
    }
    // SAFETY: fcntl of a number.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Has a connection leave its rings, as leave_rings. In a child of vfork(2) the table is the parent's, but descriptors
/// are the child's own.
fn leaves(fd: c_int) -> bool {
    if fork::in_vfork_child() {
        descriptors::pin(fd);
        return reuse::same_socket(fd).is_none_or(descriptors::leave_rings);
    }
    descriptors::leave_rings(fd)
}

fn refused<T>(result: T) -> T {
    errno::set(EBUSY);
    result
}

/// Says once why another program cannot run.
fn complain(fd: c_int) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        crate::sys::report(&alloc::format!(
            "descriptor {fd} is a connection that another program would inherit, and its peer does not send again what was not read: EBUSY"
        ));
    }
}
