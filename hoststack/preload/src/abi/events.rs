// SPDX-License-Identifier: Apache-2.0

//! epoll, poll and select.

use super::{answer_int, checked};
use crate::fdtable::{descriptors, reuse, table, Table};
use crate::ready::{epoll, poll};
use crate::ring::parts::is_no_address;
use crate::sys::errno::{EFAULT, EINVAL};
use crate::sys::{clock, real, Deadline, Errno, Outcome};
use core::time::Duration;
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

exported! {
    fn epoll_create(size: c_int) -> c_int {
        if size <= 0 {
            return answer_int(Err(EINVAL));
        }
        // SAFETY: no addresses.
        unsafe { epoll_create1(0) }
    }

    fn epoll_create1(flags: c_int) -> c_int {
        let fd = real::epoll_create1(flags);
        if fd >= 0 {
            reuse::made(fd);
            table::epoll_or_new(fd);
        }
        fd
    }

    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if let Some(inner) = table::epoll(fd).filter(|_| operation == libc::EPOLL_CTL_ADD) {
            inner.watch();
        }
        if operation == libc::EPOLL_CTL_ADD {
            let (session, instance) = (table::session(fd), table::epoll(epoll));
            if session.is_some_and(|session| session.is_attached() || instance.is_some_and(|known| known.has(fd))) {
                reuse::verify(fd);
            }
            if table::session(fd).is_none() {
                descriptors::anticipate(fd);
            }
        }
        match (table::session(fd), table::epoll_or_new(epoll)) {
            (Some(session), Some(instance)) if epoll != fd => {
                // SAFETY: the event is the program's, if it can be one.
                let wanted = unsafe { event.as_ref() }.filter(|event| !is_no_address(*event)).copied();
                answer_int(instance.control(operation, fd, session.forever(), wanted).map(|()| 0))
            }
            // SAFETY: the kernel checks the event.
            _ => unsafe { real::epoll_ctl(epoll, operation, fd, event) },
        }
    }

    fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
        // SAFETY: no mask; otherwise the same contract.
        unsafe { epoll_pwait(epoll, events, most, timeout, core::ptr::null()) }
    }

    fn epoll_pwait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        let limit = (timeout >= 0).then(|| Duration::from_millis(timeout as u64));
        // SAFETY: room for events and the mask are the program's.
        unsafe { wait_events(epoll, events, most, limit, mask) }
    }

    fn epoll_pwait2(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: the time, room for events and the mask are the program's.
        unsafe { duration(timeout.as_ref()).map_or_else(answer_error, |limit| wait_events(epoll, events, most, limit, mask)) }
    }

    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        let limit = (timeout >= 0).then(|| Duration::from_millis(timeout as u64));
        // SAFETY: the list is the program's; no mask.
        unsafe { poll_list(fds, count, limit, core::ptr::null()) }
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int {
        checked(count as usize * size_of::<pollfd>(), size);
        // SAFETY: the list has the size that was checked.
        unsafe { poll(fds, count, timeout) }
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: the time, the list and the mask are the program's.
        unsafe { duration(timeout.as_ref()).map_or_else(answer_error, |limit| poll_list(fds, count, limit, mask)) }
    }

    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, size: size_t) -> c_int {
        checked(count as usize * size_of::<pollfd>(), size);
        // SAFETY: the list has the size that was checked.
        unsafe { ppoll(fds, count, timeout, mask) }
    }

    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        // SAFETY: the time is the program's.
        let limit = match unsafe { timeout.as_ref() } {
            Some(t) if t.tv_sec < 0 || t.tv_usec < 0 => return answer_int(Err(EINVAL)),
            Some(t) => Some(Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)),
            None => None,
        };
        let deadline = Deadline::after(limit);
        // SAFETY: the sets are the program's; no mask.
        let result = unsafe { select_sets(count, poll::Sets { read, write, except }, limit, core::ptr::null()) };
        // SAFETY: as above; select(2) stores the time that is left.
        if let (Some(timeout), Some(left)) = (unsafe { timeout.as_mut() }, deadline.left()) {
            *timeout = timeval { tv_sec: left.as_secs() as _, tv_usec: left.subsec_micros() as _ };
        }
        result
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let sets = poll::Sets { read, write, except };
        // SAFETY: the time, the sets and the mask are the program's.
        unsafe { duration(timeout.as_ref()).map_or_else(answer_error, |limit| select_sets(count, sets, limit, mask)) }
    }
}

fn answer_error(error: Errno) -> c_int {
    answer_int(Err(error))
}

/// Returns a time limit of a program, which the kernel would take.
pub fn duration(timeout: Option<&timespec>) -> Outcome<Option<Duration>> {
    match timeout {
        None => Ok(None),
        Some(t) if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) => Err(EINVAL),
        Some(t) => Ok(Some(Duration::new(t.tv_sec as u64, t.tv_nsec as u32))),
    }
}

/// # Safety
/// `events` has room for `most` events; `mask` is null or a signal mask.
unsafe fn wait_events(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    if most <= 0 || events.is_null() {
        // SAFETY: the kernel checks the arguments.
        return unsafe { real::epoll_pwait(fd, events, most, 0, mask) };
    }
    // SAFETY: the caller has room for `most` events.
    let out = unsafe { core::slice::from_raw_parts_mut(events, most as usize) };
    answer_int(match table::held_epoll(fd) {
        Some(instance) => instance.wait(fd, out, limit, mask),
        None => first_wait(fd, out, limit, mask),
    })
}

/// Waits for an instance that had no session when the wait began, but may have some when it ends.
fn first_wait(fd: c_int, out: &mut [epoll_event], limit: Option<Duration>, mask: *const sigset_t) -> Outcome {
    let n = epoll::kernel_wait(fd, out, limit, mask)?;
    let Some(instance) = table::held_epoll(fd) else { return Ok(n) };
    match instance.translate(out, n) {
        0 if n > 0 => instance.wait(fd, out, limit, mask),
        kept => Ok(kept),
    }
}

/// # Safety
/// `fds` leads to `count` descriptors; `mask` is null or a signal mask.
unsafe fn poll_list(fds: *mut pollfd, count: nfds_t, limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    let list = match count {
        0 => &mut [],
        _ if is_no_address(fds) => return answer_int(Err(EFAULT)),
        // SAFETY: the caller has `count` descriptors.
        _ => unsafe { core::slice::from_raw_parts_mut(fds, count as usize) },
    };
    answer_int(poll::poll(&Table, list, limit, mask))
}

/// # Safety
/// The sets are null or the program's; `mask` is null or a signal mask.
unsafe fn select_sets(count: c_int, sets: poll::Sets, limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    if sets.have_sessions(&Table, count) {
        return answer_int(sets.select(&Table, count, limit, mask));
    }
    let limit = limit.map(clock::to_timespec);
    let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: as the caller's.
    unsafe { real::pselect(count, sets.read, sets.write, sets.except, limit, mask) }
}
