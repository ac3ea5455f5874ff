// SPDX-License-Identifier: Apache-2.0

//! What a process has, as the kernel reports.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::time::Duration;

/// Pages that a process may have more at the end: those of an allocator, in KiB.
const ROOM: u64 = 1024;

/// Mappings that an allocator may have more at the end.
const ROWS: usize = 4;

#[derive(PartialEq)]
pub struct Usage {
    /// Resident memory in KiB.
    memory: u64,
    descriptors: usize,
    /// Mappings of rings, and all rows of `/proc/PID/maps`.
    rings: usize,
    rows: usize,
}

impl Usage {
    fn of(process: u32) -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
        let (status, maps) = (read("status"), read("maps"));
        let memory =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse().ok());
        Self {
            memory: memory.unwrap_or(0),
            descriptors: fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count),
            rings: maps.lines().filter(|row| row.contains("/memfd:beeline-ring")).count(),
            rows: maps.lines().count(),
        }
    }

    /// Returns what a process has once that does not change: it may be closing connections yet.
    pub fn settled(process: u32) -> Self {
        let mut last = Self::of(process);
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(200));
            let now = Self::of(process);
            if now == last && now.rings == 0 {
                break;
            }
            last = now;
        }
        last
    }

    pub fn has_grown(&self, before: &Self) -> bool {
        self.memory > before.memory + ROOM
            || self.descriptors > before.descriptors
            || self.rings > 0
            || self.rows > before.rows + ROWS
    }
}

impl Display for Usage {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self { memory, descriptors, rings, rows } = self;
        write!(f, "{memory} KiB resident, {descriptors} descriptors, {rings} mappings of rings of {rows}")
    }
}
